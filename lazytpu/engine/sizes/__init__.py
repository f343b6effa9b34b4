"""Varying sizes: the buckets of sizes that share a program, the traces that belong to them, and padding of uploaded
data."""
