"""The longest chain of a schedule: a lower bound for every order in which its ops could run."""

from __future__ import annotations

from collections.abc import Sequence


def longest_chain(seconds: Sequence[float], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return the chain of dependent ops that takes longest, by index. `needs` lists the earlier ops that each reads."""
    longest: list[float] = []
    before: list[int | None] = []
    for own, needed in zip(seconds, needs, strict=True):
        last = max(needed, key=longest.__getitem__, default=None)
        before.append(last)
        longest.append(own + (longest[last] if last is not None else 0.0))
    at = max(range(len(longest)), key=longest.__getitem__, default=None)
    chain: list[int] = []
    while at is not None:
        chain.append(at)
        at = before[at]
    return chain[::-1]
