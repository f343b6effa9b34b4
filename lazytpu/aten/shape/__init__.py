"""Ops that make tensors, and move or copy elements without computing."""
