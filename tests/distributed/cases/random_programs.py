"""Random programs of collectives, messages and barriers, between which each rank runs ops of its own. They run on all
ranks: first with CPU tensors, over gloo, then on the device with diverging ranks.

A program has one order, in which each rank finds its own calls, so it terminates. Each rank begins an asynchronous
collective at a place of its own. In between it may run anything for which gloo does not wait: messages, barriers and
CPU collectives in other groups, reads, cuts.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

import lazytpu

LENGTH = 16  # actions
TIMEOUT = datetime.timedelta(seconds=20)
WORLD, SECOND, SOME, ALONE, HOST = range(5)  # groups; the last one has only CPU collectives


@cache
def _groups(device: str) -> list[Any]:
    """Two groups of all ranks, one of the first two, one of this rank alone, and a third one of all."""
    size = dist.get_world_size()
    make = partial(dist.new_group, timeout=TIMEOUT, backend="gloo" if device == "cpu" else None)
    alone = [make([rank]) for rank in range(size)]
    every: list[Any] = [make(list(range(size))) for _ in range(3)]
    return [every[0], every[1], make([0, 1]), alone[dist.get_rank()], every[2]]


@dataclass
class Run:
    """A running program: its `values`, and the collectives that it has begun, by number."""

    device: str
    values: list[torch.Tensor]
    begun: dict[int, tuple[torch.Tensor, Any]] = field(default_factory=dict[int, tuple[torch.Tensor, Any]])

    def group(self, which: int) -> Any:
        return _groups(self.device)[which]


Action = Callable[[Run], None]
Call = tuple[Iterable[int], Action]


def _alter(run: Run, at: int, by: Callable[[torch.Tensor, Any], torch.Tensor], group: int = WORLD) -> None:
    run.values[at] = by(run.values[at], run.group(group))


def _begin(run: Run, number: int, at: int, group: int, kind: str) -> None:
    x = run.values[at] * (number + 1)
    if kind == "reduce":
        work = dist.all_reduce(x, group=run.group(group), async_op=True)
    elif kind == "average":
        work = dist.all_reduce(x, dist.ReduceOp.MAX, group=run.group(group), async_op=True)
    else:
        gathered = torch.zeros(len(x) * dist.get_world_size(run.group(group)), device=run.device)
        work = dist.all_gather_single(gathered, x, group=run.group(group), async_op=True)
        x = gathered
    run.begun[number] = x, work


def _end(run: Run, number: int, at: int) -> None:
    begun, work = run.begun.pop(number)
    work.wait()
    x = run.values[at]
    run.values[at] = x * 0.5 + begun[: len(x)] / (number + 2)


# -- collectives that all members of a group call at once


def _reduce(x: torch.Tensor, group: Any, op: Any) -> torch.Tensor:
    copied = x.clone()
    dist.all_reduce(copied, op, group=group)
    return copied / (2 if op == dist.ReduceOp.SUM else 1)


def _reduce_later(x: torch.Tensor, group: Any) -> torch.Tensor:
    doubled = x * 2
    work: Any = dist.all_reduce(doubled, dist.ReduceOp.MAX, group=group, async_op=True)
    unrelated = x + 1
    work.wait()
    return doubled - unrelated


def _gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    outputs = [torch.zeros_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(outputs, x, group=group)
    return torch.stack(outputs).mean(0) + outputs[0]


def _gather_whole(x: torch.Tensor, group: Any) -> torch.Tensor:
    output = torch.zeros(len(x) * dist.get_world_size(group), device=x.device)
    dist.all_gather_single(output, x, group=group)
    return output.roll(len(x) // 2)[: len(x)].clone()


def _broadcast(x: torch.Tensor, group: Any) -> torch.Tensor:
    copied = x.clone()
    dist.broadcast(copied, group=group, group_src=dist.get_world_size(group) - 1)
    return copied


# -- calls that go through the host


def _exchange(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Send a message to the next rank, and receive one from the previous rank, at once."""
    rank, size, received = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + 1) % size, group),
        dist.P2POp(dist.irecv, received, (rank - 1) % size, group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return received


def _send(x: torch.Tensor, group: Any, source: int, target: int) -> torch.Tensor:
    copied = x * 1
    if dist.get_rank() == source:
        dist.send(copied, target, group=group)
    else:
        dist.recv(copied, source, group=group)
    return copied


def _objects(x: torch.Tensor, group: Any) -> torch.Tensor:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, dist.get_rank() + 1, group=group)
    return x * float(sum(gathered)) / 3


def _host(x: torch.Tensor, group: Any) -> torch.Tensor:
    """A collective of a CPU tensor, whatever the device of the other ones."""
    reduced = torch.ones(2)
    dist.all_reduce(reduced, group=group)
    return x + reduced[0].item()


def _barrier(x: torch.Tensor, group: Any) -> torch.Tensor:
    dist.barrier(group)
    return x


def _store(x: torch.Tensor, group: Any, key: str) -> torch.Tensor:
    """Each rank waits for the others through torch's store."""
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"{key}/{x.device.type}/{dist.get_rank()}", "here")
    store.wait([f"{key}/{x.device.type}/{rank}" for rank in range(dist.get_world_size())])
    return x


# -- programs


@dataclass
class Flying:
    """An asynchronous collective of a value: the ranks that have `yet` to begin it, and the ranks that have not
    `waited`."""

    number: int
    at: int
    group: int
    kind: str
    yet: set[int]
    waited: set[int]


class Program:
    """A program: its `calls` in order, each with the ranks that make it."""

    def __init__(self, seed: int, size: int):
        self.random = random.Random(seed)
        self.size = size
        self.every = set(range(size))
        self.calls: list[Call] = []
        self.flying: list[Flying] = []
        self.count = 0
        for step in range(LENGTH):
            self.random.choice((self._open, self._open, self._go_on, self._wait, self._local, self._sync, self._sync))()
            self._meet(f"{seed}/{step}")
        self._begin_all()
        while self.flying:
            self._wait()

    def _members(self, group: int) -> set[int]:
        return {0, 1} if group == SOME else self.every

    def _open(self) -> None:
        """Add a collective, which one rank begins."""
        group = self.random.choice((WORLD, WORLD, SECOND, SOME))
        members, kind = self._members(group), self.random.choice(("reduce", "average", "gather"))
        self.flying.append(Flying(self.count, self.random.randrange(3), group, kind, set(members), set(members)))
        self.count += 1
        self._catch_up(self.random.choice(sorted(members)), len(self.flying))

    def _catch_up(self, rank: int, count: int) -> None:
        """Let a rank begin `count` of the oldest, in order: it has one order of all collectives of the device."""
        for item in self.flying[:count]:
            if rank in item.yet:
                item.yet.remove(rank)
                self.calls.append(
                    ([rank], partial(_begin, number=item.number, at=item.at, group=item.group, kind=item.kind))
                )

    def _go_on(self) -> None:
        self._catch_up(self.random.randrange(self.size), self.random.randrange(len(self.flying) + 1))

    def _begin_all(self, count: int | None = None) -> None:
        for rank in self.random.sample(range(self.size), self.size):
            self._catch_up(rank, len(self.flying) if count is None else count)

    def _wait(self) -> None:
        """Let some ranks wait for a collective, which all have begun by then."""
        if self.flying:
            place = self.random.randrange(len(self.flying))
            item = self.flying[place]
            self._begin_all(place + 1)
            for rank in self.random.sample(sorted(item.waited), self.random.randrange(1, len(item.waited) + 1)):
                item.waited.remove(rank)
                self.calls.append(([rank], partial(_end, number=item.number, at=item.at)))
            self.flying = [item for item in self.flying if item.waited]

    def _local(self) -> None:
        at = self.random.randrange(3)
        change = self.random.choice((lambda x, group: x * 0.5 + 1, lambda x, group: torch.sin(x)))
        self.calls.append(([self.random.randrange(self.size)], partial(_alter, at=at, by=change)))

    def _sync(self) -> None:
        """Add a collective for which its ranks wait, and so for all before it."""
        self._begin_all()
        group = self.random.choice((WORLD, WORLD, SECOND, SOME, ALONE))
        kinds = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)
        by: Any = self.random.choice(
            (partial(_reduce, op=self.random.choice(kinds)), _reduce_later, _gather, _gather_whole, _broadcast)
        )
        self.calls.append((self._members(group), partial(_alter, at=self.random.randrange(3), by=by, group=group)))

    def _meet(self, key: str) -> None:
        """Let ranks meet on the host, with any collectives begun before."""
        by: Any = self.random.choice((_exchange, None, None, _objects, _host, _barrier, partial(_store, key=key)))
        who, group = self.every, HOST
        if by is None:
            source, target = self.random.sample(range(self.size), 2)
            who, group = {source, target}, self.random.choice((WORLD, HOST))
            by = partial(_send, source=source, target=target)
        self.calls.append((who, partial(_alter, at=self.random.randrange(3), by=by, group=group)))


def _diverge(own: random.Random, values: list[torch.Tensor], quiet: bool) -> None:
    """Run ops on one rank only; it waits for all running work if `quiet`, when no begun collective is unfinished."""
    chosen = values[own.randrange(len(values))]
    match own.randrange(10):
        case 0:
            assert chosen.cpu().isfinite().all()
        case 1:
            assert str(chosen)
        case 2:
            lazytpu.mark_step()
        case 3:
            assert (values[0].sum() + chosen.sum()).isfinite().item()
        case 4:
            time.sleep(own.random() * 0.1)
        case 5:
            for _ in range(own.randrange(1, 12)):
                chosen = chosen * 0.9 + 0.1
            del chosen
        case 6 if chosen.sum().item() > own.random():
            torch.nn.Linear(4, 4).to("tpu")(chosen[:4]).sum().backward()
        case 7 if quiet:
            lazytpu.sync()
        case _:
            pass


def run(seed: int) -> None:
    """Run one program. A deadlock ends with an error, by the timeout of the groups."""
    rank, choices = dist.get_rank(), random.Random(f"{seed} {dist.get_rank()}")
    program = Program(seed, dist.get_world_size())
    size = program.random.choice((4, 6, 32))
    start = [torch.arange(float(size)) * (i + 1) / size + rank for i in range(3)]
    with lazytpu.mode(program.random.choice(("lazy", "fused", "fused", "strict"))):
        expected, actual = Run("cpu", list(start)), Run("tpu", [value.to("tpu") for value in start])
        for which in (expected, actual):
            for who, call in program.calls:
                if rank in who:
                    if which is actual:
                        _diverge(choices, actual.values, quiet=not actual.begun)
                    call(which)
        order = list(range(3))
        choices.shuffle(order)
        for at in order:
            torch.testing.assert_close(actual.values[at].cpu(), expected.values[at], rtol=1e-5, atol=1e-5)
    dist.barrier()
