"""Errors of lowering."""

from __future__ import annotations


class LoweringError(Exception):
    """An op could not be lowered, or was lowered to invalid StableHLO: a bug in a rule, not in the user's program."""
