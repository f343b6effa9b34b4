"""Passes on attention: match it in models, compute it by a kernel where that pays, and decompose it elsewhere."""
