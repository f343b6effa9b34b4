"""Rewrite patterns of `canonicalize`, one file per family of ops.

Each file ends in `PATTERNS`: class of op -> the patterns tried on it, in order. A pattern is exact: the rewritten
module computes the same bits for every input, NaN, infinities and -0.0 included (the payload of a NaN is not looked
at; the order in which one reduction or product sums is open in the dialect).
"""
