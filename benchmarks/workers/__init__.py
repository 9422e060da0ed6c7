"""One module per system: each is a process of its own, in the system's own environment."""
