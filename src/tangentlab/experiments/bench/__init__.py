"""The bench: everything an experiment stands on (parameters, claims, seeds, run folders, training, processes)."""
