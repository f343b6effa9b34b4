"""The difference of two modules as text, by what ops do and not by how values are numbered.

One op less renumbers every value after it, so lines are first aligned without the names of values. Then the names of
each aligned pair are matched: a line is the same when its operands are what the other's operands became.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from lazytpu.inspect.textual import kind_of, skeleton, values, without_locations


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
            became.update(_counterparts(before[a:b], after[c:d]))
            lines += [Line("-", line) for line in before[a:b]]
            lines += [Line("+", line) for line in after[c:d]]
    return lines


def _counterparts(before: list[str], after: list[str]) -> dict[str, str]:
    """What the values of lines that differ became: the results of the first `exp` those of the other first `exp`, and
    so on by kind of op; arguments of a function go by name first. So a change does not spread to the users of its
    result."""
    matched: dict[str, str] = {}
    waiting: dict[str | None, list[list[str]]] = {}
    for line in after:
        waiting.setdefault(kind_of(line), []).append(_defined(line))
    for line in before:
        if same_kind := waiting.get(kind_of(line)):
            old, new = _defined(line), same_kind.pop(0)
            matched.update(zip(old, new, strict=False))
            if "func.func" in line:
                matched.update((name, name) for name in old if name in new)
    return matched


def _defined(line: str) -> list[str]:
    """The values that a line defines: the results of an op, the arguments of a function or block."""
    if "func.func" in line or line.lstrip().startswith("^"):
        return values(line)
    return values(line.split(" = ", 1)[0]) if " = " in line else []


def _aligned(before: list[str], after: list[str], became: dict[str, str]) -> Iterator[Line]:
    """Lines that are alike but for the names of values; `became` maps the first module's names to the second's."""
    for old, new in zip(before, after, strict=True):
        names = list(zip(values(old), values(new), strict=True))
        defined = len(_defined(old))
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
