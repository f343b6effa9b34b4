"""How an op becomes a record: kernels, names and lines of values, the checks before a write, where a trace is cut."""
