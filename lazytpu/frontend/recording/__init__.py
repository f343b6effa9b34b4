"""Recording: the path from an op to a record. Kernels, names and source lines of values, checks before writes, and the
positions of cuts."""
