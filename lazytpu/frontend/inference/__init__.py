"""Shapes, dtypes, strides and errors of an op's results, determined on the miss path: by torch's meta functions, and by
our own where the CPU's behaviour differs."""
