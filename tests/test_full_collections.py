"""Full garbage collections begin when the process has grown, and not in a steady loop."""

from __future__ import annotations

import pytest

from lazytpu import full_collections
from tests import zygote

BEGIN = """
import gc, weakref
import torch
x = torch.ones(3, device="tpu") + 1
class Node:
    pass
def full():
    return gc.get_stats()[2]["collections"]
"""

STEADY = """
kept = []
def step():
    kept[:] = [[Node()] for _ in range(3000)]
def steps(count):
    before = full()
    for _ in range(count):
        step()
    return full() - before
"""


def _printed(code: str) -> list[str]:
    done = zygote.run(["-c", BEGIN + code])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_steady_loop_has_no_full_collection() -> None:
    code = STEADY + "steps(50); print(steps(200) == 0, gc.get_threshold()[:2] == (700, 10))"
    assert _printed(code) == ["True", "True"]


def test_the_same_loop_has_some_by_pythons_own_thresholds() -> None:
    assert _printed(STEADY + "gc.set_threshold(700, 10, 10); steps(50); print(steps(200) > 0)") == ["True"]


def test_thresholds_of_the_program_are_kept() -> None:
    code = STEADY + "gc.set_threshold(500, 5, 5); steps(100); gc.collect(); steps(10); print(*gc.get_threshold())"
    assert _printed(code) == ["500", "5", "5"]


def test_thresholds_set_before_the_device_are_kept() -> None:
    code = "import gc; gc.set_threshold(900, 9, 9)\n" + BEGIN + "gc.collect(); print(*gc.get_threshold())"
    done = zygote.run(["-c", code])
    assert (done.returncode, done.stdout.split()) == (0, ["900", "9", "9"]), done.stderr


GARBAGE = """
alive = weakref.WeakSet()
most = 0
recent = []
for _ in range(60):
    nodes = [Node() for _ in range(4000)]
    for node in nodes:
        node.itself, node.more = node, [[], [], []]
    alive.update(nodes[:10])
    recent.append(nodes)  # until it is in the oldest generation
    del recent[:-8], node, nodes
    most = max(most, len(alive))
print(most < 400)
"""


@pytest.mark.parametrize(
    "change",
    [
        "",
        "gc.set_threshold(1000)",
        "gc.set_threshold(1000, *gc.get_threshold()[1:])",
        "gc.set_threshold(*(2 * threshold for threshold in gc.get_threshold()))",
        "before = gc.get_threshold(); gc.set_threshold(1, 1, 1); gc.collect(1); gc.set_threshold(*before)",
    ],
)
def test_old_garbage_is_collected_when_it_is_a_quarter_of_the_process(change: str) -> None:
    assert _printed(f"gc.collect(); {change}\n{GARBAGE}") == ["True"]


def test_derived_thresholds_take_effect_as_if_pythons_own_had_been_read() -> None:
    code = """
from lazytpu import full_collections
pacing = full_collections._pacing[0]
gc.collect()
gc.set_threshold(*(2 * threshold for threshold in gc.get_threshold()))
gc.collect(1)
print(*pacing.open, *gc.get_threshold())
"""
    assert _printed(code) == ["1400", "20", "20", "1400", "20", str(full_collections.CLOSED)]


def test_explicit_collection_is_full() -> None:
    code = """
node = Node()
node.itself = node
gone = weakref.ref(node)
gc.collect()
del node
gc.collect()
print(gone() is None)
"""
    assert _printed(code) == ["True"]


def test_growth_of_the_device_opens_the_next_full_collection() -> None:
    code = """
from lazytpu import full_collections
held = [100]
gc.set_threshold(700, 10, 10)
pacing = full_collections.Pacing(lambda: held[0])
pacing.begin()
gc.collect()
print(gc.get_threshold()[2])
pacing.look()
print(gc.get_threshold()[2])
held[0] = 126
pacing.look()
print(gc.get_threshold()[2])
gc.collect()
print(gc.get_threshold()[2])
"""
    closed = str(full_collections.CLOSED)
    assert _printed(code) == [closed, closed, "10", closed]
