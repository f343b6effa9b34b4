"""Varying sizes: the buckets of sizes that share a program, and the traces that belong to them."""
