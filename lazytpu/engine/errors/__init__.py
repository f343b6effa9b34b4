"""Errors of a cut: the op and source line, the values that depend on it, and the restoration of old values."""
