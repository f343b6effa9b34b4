"""Ops that create tensors, and ops that move or copy elements."""
