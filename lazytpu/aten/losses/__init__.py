"""Losses that torch does not decompose into pointwise ops and reductions."""
