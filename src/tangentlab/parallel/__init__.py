"""Work side by side: threads of one process, each on a core of its own, and processes that train one model together."""
