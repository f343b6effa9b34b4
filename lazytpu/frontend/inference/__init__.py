"""Shapes, dtypes, strides and errors of an op's results, found on the miss path: torch's meta functions, and where
the CPU differs from them."""
