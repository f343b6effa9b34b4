"""The search for the earlier program nearest to a new trace."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lazytpu.engine.recompiles.nearest import ALIKE, TraceSketch, edges, nearest
from lazytpu.frontend.lines import SourceLine
from lazytpu.trace.trie import Record
from lazytpu.trace.value import Layout

aten = torch.ops.aten
OPS = {"e": aten.exp.default, "s": aten.sin.default, "c": aten.cos.default, "t": aten.tan.default}
SIZES = {n: Layout(torch.float32, (n,), (1,)) for n in range(100)}


def sketch(ops: str, sizes: Sequence[int] | int = 1, line: int = 1) -> TraceSketch:
    """A sketch of a trace of unary ops with results of these sizes."""
    sizes = [sizes] * len(ops) if isinstance(sizes, int) else sizes
    return TraceSketch.of(
        [
            Record(OPS[op], {}, (SIZES[size],), (i,), {}, (), SourceLine("a.py", line, "f"))
            for i, (op, size) in enumerate(zip(ops, sizes, strict=True))
        ]
    )


def test_edges_count_the_common_beginning_and_end() -> None:
    assert edges(sketch("esct"), sketch("esct")) == (4, 0)
    assert edges(sketch("esct"), sketch("ect")) == (1, 2)
    assert edges(sketch("ec"), sketch("ecs")) == (2, 0)
    assert edges(sketch("es"), sketch("ct")) == (0, 0)
    assert edges(sketch("eee"), sketch("ee")) == (2, 0)


def test_longest_common_beginning_and_end_wins() -> None:
    sketches = [("short", sketch("escc")), ("long", sketch("esctttte")), ("other", sketch("tttt"))]
    neighbor = nearest(sketch("esctttse"), sketches)
    assert neighbor is not None
    assert (neighbor[0], neighbor[1].before, neighbor[1].after) == ("long", 6, 1)
    assert neighbor[1].share == 7 / 8


def test_ties_are_broken_by_common_layouts_then_by_order() -> None:
    sketches = [
        ("one", sketch("esc", [1, 1, 9])),
        ("two", sketch("esc", [1, 2, 3])),
        ("three", sketch("esc", [1, 2, 3])),
    ]
    neighbor = nearest(sketch("esc", [1, 2, 4]), sketches)
    assert neighbor is not None
    assert (neighbor[0], neighbor[1].share, neighbor[1].layouts) == ("two", 1.0, 2)


def test_no_program_is_near_without_a_common_end() -> None:
    assert nearest(sketch("esc"), [("other", sketch("tes"))]) is None
    assert nearest(sketch("esc"), [("elsewhere", sketch("esc", line=2))]) is None
    assert nearest(sketch("esc"), []) is None


def test_only_the_newest_of_many_sizes_are_compared() -> None:
    same = [(i, sketch("esc", i)) for i in range(1, 2 * ALIKE)]
    neighbor = nearest(sketch("esc", 2 * ALIKE - 1), same)
    assert neighbor is not None
    assert neighbor[0] == 1
    neighbor = nearest(sketch("esc", 5), same)
    assert neighbor is not None
    assert neighbor[0] == 5
