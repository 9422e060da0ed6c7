"""The same work through tangentlab and its peers, in one run: `python benchmarks/run.py --help`."""
