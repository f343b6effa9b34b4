"""Attention: found in the products that spell it, computed by a kernel where that pays, written out elsewhere."""
