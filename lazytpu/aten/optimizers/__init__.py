"""Ops that update many parameters at once."""
