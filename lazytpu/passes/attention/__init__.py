"""Passes on attention: it is matched in models, computed by a kernel where that pays, and decomposed elsewhere."""
