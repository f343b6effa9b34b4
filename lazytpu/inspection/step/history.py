"""The changes by each pass of a pipeline: op counts, seconds, and the diff."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from xdsl.utils.exceptions import ParseError

from lazytpu.inspection.diff import DiffLine, diff, with_context
from lazytpu.inspection.textual import stats
from lazytpu.ir.text import parse_module
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import run_pipeline


@dataclass(frozen=True)
class PassChange:
    """The changes by one pass. `lines` are the changed lines with context, and None where lines were left out. `kinds`
    is the change in the number of ops by kind."""

    name: str
    seconds: float
    ops_before: int
    ops_after: int
    lines: tuple[DiffLine | None, ...]
    kinds: dict[str, int]

    @property
    def changed(self) -> int:
        """The number of lines that differ."""
        return sum(line is not None and line.sign != " " for line in self.lines)


def history(text: str, passes: str, name: str = "module") -> tuple[list[PassChange], str]:
    """Run `passes` on the module in `text`. Returns the changes by each pass, and the text of the final module.

    Raises ValueError if the text or the pipeline cannot be parsed, or if a pass fails.
    """
    try:
        module = parse_module(text, name)
    except ParseError as error:
        raise ValueError(f"{name} is not a module of the lazytpu dialect: {error}") from error
    try:
        records = run_pipeline(module, passes=passes, verify=False, keep="all")
    except PassError as error:
        raise ValueError(str(error)) from error
    changes: list[PassChange] = []
    for before, after in pairwise(records):
        assert before.text is not None and after.text is not None
        lines = tuple(with_context(diff(before.text, after.text), around=1)) if before.text != after.text else ()
        changes.append(
            PassChange(
                after.name, after.seconds, after.ops_before, after.ops_after, lines, _kinds(before.text, after.text)
            )
        )
    return changes, records[-1].text or ""


def _kinds(before: str, after: str) -> dict[str, int]:
    counts = _counts(after)
    counts.subtract(_counts(before))
    return {kind: count for kind, count in sorted(counts.items(), key=lambda item: item[1]) if count}


def _counts(text: str) -> Counter[str]:
    return Counter({kind.removeprefix("lazytpu."): len(sizes) for kind, sizes in stats(text).ops.items()})
