"""Jobs for the simulation: groups, and the cuts of each rank."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from tests.distributed.simulation import MANY, Cut

Groups = dict[str, tuple[int, ...]]


def steady(size: int, count: int) -> tuple[Groups, list[list[Cut]]]:
    """Return the groups and programs of ranks that run equal cuts."""
    calls = ("a", "all_reduce float32[2]"), ("b", "all_reduce float32[3]"), ("a", "all_reduce float32[4]")
    cut = Cut(calls, "same")
    return {"a": tuple(range(size)), "b": tuple(range(size))}, [[cut] * count for _ in range(size)]


def meshed(size: int, count: int, side: int = 2) -> tuple[Groups, list[list[Cut]]]:
    """Return the groups and programs of ranks in `side` columns, whose equal cuts have collectives in rows and
    columns."""
    everyone = tuple(range(size))
    groups = {f"row {i}": everyone[side * i : side * (i + 1)] for i in range(size // side)}
    groups |= {f"column {i}": everyone[i::side] for i in range(side)}
    programs: list[list[Cut]] = []
    for rank in everyone:
        row, column = f"row {rank // side}", f"column {rank % side}"
        calls = (row, "all_gather float32[2]"), (column, "all_reduce float32[3]"), (row, "all_gather float32[2]")
        programs.append([Cut(calls, "same")] * count)
    return groups, programs


def random_job(seed: int, size: int) -> tuple[dict[str, tuple[int, ...]], list[Sequence[Cut]], Collection[int]]:
    """Return the groups, programs and doomed ranks of a job. Its ranks call the same collectives, mostly in the same
    cuts, and mostly have the same programs of them. In a large job only few ranks differ."""
    draw = random.Random(seed)
    everyone = tuple(range(size))
    groups = {"world": everyone, "again": everyone}
    side = next(side for side in range(int(size**0.5), 0, -1) if size % side == 0) if size > 8 else 2
    meshed = size % side == 0 and size > 2 and draw.random() < 0.5
    if meshed:  # all ranks call the collectives of their row and column at the same time
        groups |= {f"row {i}": everyone[side * i : side * (i + 1)] for i in range(size // side)}
        groups |= {f"column {i}": everyone[i::side] for i in range(side)}
    elif size > 2:
        groups |= {"left": everyone[: size // 2], "right": everyone[size // 2 :], "left again": everyone[: size // 2]}
    of_equal = {members: name for name, members in groups.items()}
    order = {name: of_equal[members] for name, members in groups.items()}  # one group of those with equal members
    # Some steps are repeated, as in training.
    kinds_of = ["world", "row", "column"] if meshed else list(groups)
    names = [name for name in kinds_of if draw.random() < 0.7] or ["world"]
    kinds = [[draw.choice(names) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 3))]
    steps = [draw.choice(kinds) for _ in range(draw.randint(2, 12 if size <= MANY else 4))]
    programs: list[Sequence[Cut]] = []
    changes, misses = draw.choice([(0.0, 0.0), (0.1, 0.1), (0.3, 0.4)])
    wrong = draw.randrange(size) if draw.random() < 0.15 else None
    differing = set(everyone if size <= 8 else draw.sample(everyone, draw.choice([0, 1, 3])))
    shared: dict[Any, Cut] = {}
    for rank in everyone:
        ready = draw.randint(0, 3) if rank in differing else 1  # the step at which its programs are compiled
        changed, missed = (changes, misses) if rank in differing else (0.0, 0.0)
        cuts: list[Cut] = []
        for number, step in enumerate(steps):
            of_rank = {"row": f"row {rank // side}", "column": f"column {rank % side}"} if meshed else {}
            named = [(of_rank.get(name, name), f"all_reduce float32[{i}]", name) for i, name in enumerate(step)]
            own = [call for call in named if call[2] in of_rank or rank in _of(groups, call[0])]
            calls = [(name, signature) for name, signature, _ in own]
            kinds_called = [(kind, signature) for _, signature, kind in own]
            if rank == wrong and number == len(steps) // 2 and calls:
                calls[-1] = (calls[-1][0], "all_gather int32[7]")
            sections = [slice(0, len(calls))]
            if len(calls) > 1 and draw.random() < changed:
                at = draw.randint(1, len(calls) - 1)
                sections = [slice(0, at), slice(at, len(calls))]
            for section in sections if calls else ():
                called = tuple(calls[section])
                has_program = meshed or len({order[name] for name, _ in called}) == 1
                mark = f"{kinds_called[section]}" if has_program and number >= ready and draw.random() >= missed else ""
                if mark and draw.random() < changed / 2:
                    mark = f"keeps the loss {mark}"
                cuts.append(shared.setdefault((called, mark), Cut(called, mark)))
        programs.append(cuts)
    doomed = draw.sample(everyone, draw.randint(0, min(2, size - 1))) if draw.random() < 0.3 else []
    return groups, programs, doomed


def _of(groups: dict[str, tuple[int, ...]], name: str) -> range:
    return range(groups[name][0], groups[name][-1] + 1)
