"""Errors of a cut: the op and source line, the values that depend on it, the restoration of old values, and errors of
the engine that no cut sees."""
