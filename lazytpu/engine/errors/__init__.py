"""Errors of a cut: which op of which line, what depends on it, and how tensors get their old values back."""
