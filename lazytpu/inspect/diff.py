"""The difference of two modules as text, by what ops do and not by how values are numbered.

One op less renumbers every value after it, so lines are first aligned without the names of values. Then the names of
each aligned pair are matched: a line is the same when its operands are what the other's operands became.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from lazytpu.inspect.textual import skeleton, values, without_locations


@dataclass(frozen=True)
class Line:
    """`sign` is "-" for a line of the first module alone, "+" of the second alone, " " of both (as the second has
    it)."""

    sign: str
    text: str


def diff(first: str, second: str) -> list[Line]:
    """All lines of both modules; source lines are not compared."""
    before, after = without_locations(first), without_locations(second)
    matcher = SequenceMatcher(None, [skeleton(line) for line in before], [skeleton(line) for line in after])
    lines: list[Line] = []
    became: dict[str, str] = {}
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            lines += _aligned(before[a:b], after[c:d], became)
        else:
            became.update(_arguments(before[a:b], after[c:d]))
            lines += [Line("-", line) for line in before[a:b]]
            lines += [Line("+", line) for line in after[c:d]]
    return lines


def _arguments(before: list[str], after: list[str]) -> dict[str, str]:
    """Functions whose lines differ (an attribute, an argument less): arguments of one name are one, or else of one
    place."""
    matched: dict[str, str] = {}
    functions = [[values(line) for line in lines if "func.func" in line] for lines in (before, after)]
    for old, new in zip(*functions, strict=False):
        if len(old) == len(new):
            matched.update(zip(old, new, strict=True))
        matched.update((name, name) for name in old if name in new)
    return matched


def _aligned(before: list[str], after: list[str], became: dict[str, str]) -> Iterator[Line]:
    """Lines that are alike but for the names of values; `became` maps the first module's names to the second's."""
    for old, new in zip(before, after, strict=True):
        if " = " in old:
            defined = len(values(old.split(" = ", 1)[0]))
        else:  # a function's line defines its arguments, a return uses all it names
            defined = len(values(old)) if "func.func" in old else 0
        names = list(zip(values(old), values(new), strict=True))
        became.update(names[:defined])
        if all(became.get(x) == y for x, y in names[defined:]):
            yield Line(" ", new)
        else:
            yield Line("-", old)
            yield Line("+", new)


def with_context(lines: list[Line], around: int = 3) -> Iterator[Line | None]:
    """The lines that differ with some around them; None where lines were left out."""
    near = [False] * len(lines)
    for i, line in enumerate(lines):
        if line.sign != " ":
            for j in range(max(0, i - around), min(len(lines), i + around + 1)):
                near[j] = True
    left_out = False
    for keep, line in zip(near, lines, strict=True):
        if keep:
            if left_out:
                yield None
            yield line
        left_out = not keep
