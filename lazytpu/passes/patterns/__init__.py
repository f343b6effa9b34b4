"""Rewrite patterns of `canonicalize`, one file per family of ops.

Each file ends in `PATTERNS`: class of op -> the patterns tried on it, in order. Patterns are exact: the rewritten
module computes the same bits for every input, including NaN, infinities and -0.0. Exempt are the payload of a NaN, and
the order of summation within one reduction or product, which the dialect leaves open.
"""
