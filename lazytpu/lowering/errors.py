"""The exception of this room."""

from __future__ import annotations


class LoweringError(Exception):
    """An op could not be lowered, or the StableHLO it became is not valid: a fault of a rule, not of the user."""
