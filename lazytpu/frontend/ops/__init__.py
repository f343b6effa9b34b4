"""Hand-written kernels: ops that read sizes, move data, only change metadata, or are recorded under another name."""
