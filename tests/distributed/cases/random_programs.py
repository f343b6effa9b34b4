"""Random programs of equal collectives, between which each rank does what it likes. Runs on both ranks: first with
tensors of the CPU, which gloo reduces, then on the device with ranks that diverge."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import lazytpu

LENGTH = 14  # actions
GROUPS: list[Any] = []


def _groups() -> list[Any]:
    """The world, another group of both ranks, and one of this rank alone."""
    if not GROUPS:
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        GROUPS.extend((dist.group.WORLD, dist.new_group([0, 1]), alone[dist.get_rank()]))
    return GROUPS


def _reduce(x: torch.Tensor, group: Any, op: Any) -> torch.Tensor:
    made = x.clone()
    dist.all_reduce(made, op, group=group)
    return made / (2 if op == dist.ReduceOp.SUM else 1)


def _reduce_later(x: torch.Tensor, group: Any) -> torch.Tensor:
    made = x * 2
    work: Any = dist.all_reduce(made, dist.ReduceOp.MAX, group=group, async_op=True)
    other = x + 1
    work.wait()
    return made - other


def _gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.stack(parts).mean(0) + parts[0]


def _gather_whole(x: torch.Tensor, group: Any) -> torch.Tensor:
    whole = torch.zeros(len(x) * dist.get_world_size(group), device=x.device)
    dist.all_gather_single(whole, x, group=group)
    return whole.roll(len(x) // 2)[: len(x)].clone()


def _broadcast(x: torch.Tensor, group: Any) -> torch.Tensor:
    made = x.clone()
    dist.broadcast(made, group=group, group_src=dist.get_world_size(group) - 1)
    return made


def _exchange(x: torch.Tensor) -> torch.Tensor:
    """A message in each direction, at once."""
    other, made = 1 - dist.get_rank(), torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, made, other)]):
        work.wait()
    return made


def _send(x: torch.Tensor, source: int) -> torch.Tensor:
    made = x * 1
    if dist.get_rank() == source:
        dist.send(made, 1 - source)
    else:
        dist.recv(made, source)
    return made


def _objects(x: torch.Tensor) -> torch.Tensor:
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, dist.get_rank() + 1)
    return x * float(sum(gathered)) / 3


def _host(x: torch.Tensor) -> torch.Tensor:
    """A collective of a CPU tensor, whatever the device of the others."""
    reduced = torch.ones(2)
    dist.all_reduce(reduced)
    return x + reduced[0].item()


def _store(x: torch.Tensor, key: str) -> torch.Tensor:
    """Each rank waits for the other by torch's store."""
    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"{key}/{x.device.type}/{dist.get_rank()}", "here")
    store.wait([f"{key}/{x.device.type}/{1 - dist.get_rank()}"])
    return x


def _barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x


def _action(common: random.Random, seed: int, step: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What both ranks do with a tensor."""
    group = _groups()[common.choice((0, 0, 1, 2))]
    kinds = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)
    return common.choice(
        (
            lambda x: x * 0.5 + 1,
            torch.sin,
            partial(_reduce, group=group, op=common.choice(kinds)),
            partial(_reduce, group=group, op=dist.ReduceOp.SUM),
            partial(_reduce_later, group=group),
            partial(_gather, group=group),
            partial(_gather_whole, group=group),
            partial(_broadcast, group=group),
            _exchange,
            partial(_send, source=common.randrange(2)),
            _objects,
            _host,
            partial(_store, key=f"{seed}/{step}"),
            _barrier,
        )
    )


def _diverge(own: random.Random, values: list[torch.Tensor]) -> None:
    """What one rank does by itself."""
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
        case 7:
            lazytpu.sync()
        case _:
            pass


def run(seed: int) -> None:
    """One program. Deadlocks end by the timeout of the groups, with an error."""
    common = random.Random(seed)
    rank, own = dist.get_rank(), random.Random(f"{seed} {dist.get_rank()}")
    size = common.choice((4, 6, 32))
    start = [torch.arange(float(size)) * (i + 1) / size + rank for i in range(3)]
    program = [(common.randrange(3), _action(common, seed, step)) for step in range(LENGTH)]
    with lazytpu.mode(common.choice(("lazy", "fused", "fused", "strict"))):
        expected, values = list(start), [value.to("tpu") for value in start]
        for at, action in program:
            expected[at] = action(expected[at])
        for at, action in program:
            _diverge(own, values)
            values[at] = action(values[at])
        order = list(range(3))
        own.shuffle(order)
        for at in order:
            torch.testing.assert_close(values[at].cpu(), expected[at], rtol=1e-5, atol=1e-5)
    dist.barrier()
