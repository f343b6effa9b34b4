"""The difference of two modules as text, independent of value numbering.

Removing one op renumbers every later value, so lines are aligned without the names of values. First, lines that compute
the same expression of the arguments are aligned. Then, in the gaps, lines whose nearest operands are computed in the
same way. Then lines that are equal up to names. Names in aligned lines are then matched: a line is unchanged if its
operands match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from lazytpu.inspection.textual import kind_of, names, skeleton, without_locations

# Maximum pairs of lines in a gap for which frequent lines are aligned, too; in larger gaps, difflib would take seconds.
SMALL = 250_000


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff. `sign` is "-" for a line only in the first module, "+" for a line only in the second, and " "
    for a line in both, with the text of the second."""

    sign: str
    text: str


def diff(first: str, second: str) -> list[DiffLine]:
    """Return all lines of both modules; source locations are ignored."""
    before, after = without_locations(first), without_locations(second)
    levels = list(zip(keys(before), keys(after), strict=True))
    lines: list[DiffLine] = []
    became = _same_expressions(before, after, *levels[0])
    a = c = 0
    for b, d, size in [*_blocks(levels, 0, len(before), 0, len(after)), (len(before), len(after), 0)]:
        became = _counterparts(before[a:b], after[c:d]) | became
        lines += [DiffLine("-", line) for line in before[a:b]]
        lines += [DiffLine("+", line) for line in after[c:d]]
        a, c = b + size, d + size
        lines += _aligned(before[b:a], after[d:c], became)
    return lines


def keys(lines: list[str]) -> tuple[list[int], ...]:
    """Return hashes of each line at four levels: with its whole expression of the arguments, with its operands and
    theirs, with its operands, and alone. Names of arguments count, names of other values do not."""
    alone = [hash(skeleton(line)) for line in lines]
    line_of: dict[str, int] = {}  # the last definition so far: functions and regions reuse names
    used: list[list[int | str]] = []
    for i, line in enumerate(lines):
        defined, operands = names(line)
        used.append([line_of.get(name, name) for name in operands])
        if "func.func" in line:
            line_of.clear()
        else:
            line_of.update(dict.fromkeys(defined, i))

    def key(i: int, of_operands: list[int]) -> int:
        named = (hash(value) if isinstance(value, str) else of_operands[value] for value in used[i])
        return hash((alone[i], *named))

    full = list(alone)
    for i in range(len(lines)):
        full[i] = key(i, full)
    near = [key(i, alone) for i in range(len(lines))]
    farther = [key(i, near) for i in range(len(lines))]
    return full, farther, near, alone


def _blocks(
    levels: Sequence[tuple[list[int], list[int]]], a: int, b: int, c: int, d: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (start in the first, start in the second, length) of aligned runs of lines a:b and c:d, level by level."""
    if not levels or a == b or c == d:
        return
    (before, after), finer = levels[0], levels[1:]
    frequent_too = (b - a) * (d - c) <= SMALL
    matcher = SequenceMatcher(None, before[a:b], after[c:d], autojunk=not frequent_too)
    done_a, done_c = a, c
    for x, y, size in matcher.get_matching_blocks():  # the last block is empty, at the ends
        yield from _blocks(finer, done_a, a + x, done_c, c + y)
        if size:
            yield a + x, c + y, size
        done_a, done_c = a + x + size, c + y + size


def _same_expressions(
    before: list[str], after: list[str], computed_before: list[int], computed_after: list[int]
) -> dict[str, str]:
    """Map values of the first module to values of the second that compute the same expression, at any position. This
    covers merges of equal expressions."""
    results_of = {key: names(line)[0] for key, line in zip(computed_after, after, strict=True) if " = " in line}
    became: dict[str, str] = {}
    for key, line in zip(computed_before, before, strict=True):
        became.update(zip(names(line)[0], results_of.get(key, ()), strict=False))
    return became


def _counterparts(before: list[str], after: list[str]) -> dict[str, str]:
    """Match the values of differing lines by kind of op, in order; arguments of a function first by name.

    The results of the first `exp` match the results of the other first `exp`, and so on. So a change does not spread to
    the users of its result.
    """
    matched: dict[str, str] = {}
    waiting: dict[str | None, list[list[str]]] = {}
    for line in after:
        waiting.setdefault(kind_of(line), []).append(names(line)[0])
    for line in before:
        if same_kind := waiting.get(kind_of(line)):
            old, new = names(line)[0], same_kind.pop(0)
            matched.update(zip(old, new, strict=False))
            if "func.func" in line:
                matched.update((name, name) for name in old if name in new)
    return matched


def _aligned(before: list[str], after: list[str], became: dict[str, str]) -> Iterator[DiffLine]:
    """Compare lines that are equal up to names; `became` maps the first module's names to the second's."""
    for old, new in zip(before, after, strict=True):
        (defined, operands), (defined_now, operands_now) = names(old), names(new)
        same = all(became.get(x) == y for x, y in zip(operands, operands_now, strict=True))
        became.update(zip(defined, defined_now, strict=True))
        if same:
            yield DiffLine(" ", new)
        else:
            yield DiffLine("-", old)
            yield DiffLine("+", new)


def with_context(lines: list[DiffLine], around: int = 3) -> Iterator[DiffLine | None]:
    """Yield the lines that differ, with `around` lines of context; None where lines were left out."""
    near = {j for i, line in enumerate(lines) if line.sign != " " for j in range(i - around, i + around + 1)}
    left_out = False
    for i, line in enumerate(lines):
        if i in near:
            if left_out:
                yield None
            yield line
        left_out = i not in near
