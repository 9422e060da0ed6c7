"""`python -m tangentlab.demo`: run the tour and say which page to open."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tangentlab.demo.tour import Settings, run_tour


def main(arguments: list[str]) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tangentlab.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the page and its figures")
    run_tour(Settings(), parser.parse_args(arguments).out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
