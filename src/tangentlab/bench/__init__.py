"""The bench: what experiments stand on (parameters, claims, seeds, run folders, training, processes, pages and tables)."""
