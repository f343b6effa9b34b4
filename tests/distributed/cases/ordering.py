"""Scripts whose ranks call collectives, messages and barriers in orders that gloo allows: what a call does not depend on
is not waited for. Each function runs on both ranks, on the device and, where it says nothing of cuts, as gloo does it.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

import lazytpu

SECONDS = 10.0  # after which a deadlock is an error


class Group:
    """A group of both ranks, and a tensor of its device."""

    def __init__(self, device: str, seconds: float = SECONDS):
        timeout = datetime.timedelta(seconds=seconds)
        self.device = device
        self.group: Any = dist.new_group([0, 1], timeout=timeout, backend="gloo" if device == "cpu" else None)
        self.rank = dist.get_rank()

    def full(self, value: float) -> torch.Tensor:
        return torch.full((4,), float(value)).to(self.device)

    def reduce(self, x: torch.Tensor) -> Any:
        return dist.all_reduce(x, group=self.group, async_op=True)

    def send(self, x: torch.Tensor) -> None:
        dist.send(x, 1 - self.rank, group=self.group)

    def recv(self) -> list[float]:
        made = self.full(0)
        dist.recv(made, 1 - self.rank, group=self.group)
        return made.tolist()

    def cut(self) -> None:
        if self.device == "tpu":
            lazytpu.mark_step()


def send_after_a_collective(device: str) -> None:
    g = Group(device)
    x = g.full(g.rank + 1.0)
    if g.rank == 0:
        work = g.reduce(x)
        g.send(g.full(5) + 1)
    else:
        assert g.recv() == [6.0] * 4
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4


def recv_after_a_collective(device: str) -> None:
    g = Group(device)
    x = g.full(g.rank + 1.0)
    if g.rank == 0:
        work = g.reduce(x)
        assert g.recv() == [6.0] * 4
    else:
        g.send(g.full(5) + 1)
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4


def batches_after_collectives(device: str) -> None:
    g = Group(device)
    xs = [g.full(g.rank + i) for i in range(5)]
    works = []
    other = 1 - g.rank

    def exchange() -> None:
        mine, made = g.full(g.rank + 1.0) * 2, g.full(0)
        ops = [dist.P2POp(dist.isend, mine, other, g.group), dist.P2POp(dist.irecv, made, other, g.group)]
        for each in dist.batch_isend_irecv(ops):
            each.wait()
        assert made.tolist() == [2.0 * other + 2] * 4

    if g.rank == 0:
        works = [g.reduce(x) for x in xs]
        exchange()
    else:
        exchange()
        works = [g.reduce(x) for x in xs]
    for work in works:
        work.wait()
    assert [x.tolist() for x in xs] == [[2.0 * i + 1] * 4 for i in range(5)]


def a_barrier_of_another_group(device: str) -> None:
    g, other = Group(device), Group(device)
    x = g.full(g.rank + 1.0)
    if g.rank == 0:
        work = g.reduce(x)
        dist.barrier(other.group)
    else:
        dist.barrier(other.group)
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4


def collectives_of_cpu_tensors(device: str) -> None:
    g, other = Group(device), Group(device)
    x, host = g.full(g.rank + 1.0), torch.ones(2)
    if g.rank == 0:
        work = g.reduce(x)
        dist.all_reduce(host, group=other.group)
        g.send(g.full(5) + 1)
    else:
        dist.all_reduce(host, group=other.group)
        assert g.recv() == [6.0] * 4
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4
    assert host.tolist() == [2.0] * 2


def cut_before_it_is_sent(device: str) -> None:
    g = Group(device)
    x, p = g.full(g.rank + 1.0), g.full(2)
    if g.rank == 0:
        work = g.reduce(x)
        y = p * 3
        g.cut()
        g.send(y)
    else:
        assert g.recv() == [6.0] * 4
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4
    if g.rank == 0:
        assert (y + x).tolist() == [9.0] * 4


def cut_with_a_later_collective(device: str) -> None:
    g = Group(device)
    x, z, p = g.full(g.rank + 1.0), g.full(7), g.full(2)
    if g.rank == 0:
        first = g.reduce(x)
        q = p * 2
        g.cut()
        y = q + p
        second = g.reduce(z)
        y = y * 1
        g.cut()
        g.send(y)
    else:
        assert g.recv() == [6.0] * 4
        first = g.reduce(x)
        second = g.reduce(z)
    first.wait()
    second.wait()
    assert x.tolist() == [3.0] * 4
    assert z.tolist() == [14.0] * 4


def sent_after_one_and_before_another(device: str) -> None:
    g = Group(device)
    x, z = g.full(g.rank + 1.0), g.full(7)
    g.reduce(x).wait()
    if g.rank == 0:
        work = g.reduce(z)
        y = x * 2
        g.cut()
        y = y + 1
        g.cut()
        g.send(y)
    else:
        assert g.recv() == [7.0] * 4
        work = g.reduce(z)
    work.wait()
    assert z.tolist() == [14.0] * 4


def read_after_a_collective(device: str) -> None:
    g = Group(device)
    x, p = g.full(g.rank + 1.0), g.full(2)
    if g.rank == 0:
        work = g.reduce(x)
        y = p * 3
        g.cut()
        assert y[0].item() == 6
        g.send(y)
    else:
        g.recv()
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4


def many_cuts(device: str) -> None:
    g = Group(device)
    xs = [g.full(g.rank + i) for i in range(7)]
    works = []
    if g.rank == 0:
        for x in xs:
            works.append(g.reduce(x))
            g.cut()
        g.send(g.full(6))
    else:
        assert g.recv() == [6.0] * 4
        works = [g.reduce(x) for x in xs]
    for work in works:
        work.wait()
    assert [x.tolist() for x in xs] == [[2.0 * i + 1] * 4 for i in range(7)]


def gradients(device: str) -> None:
    g = Group(device)
    w, x = g.full(2).requires_grad_(), g.full(3).requires_grad_()
    z = g.full(1)
    if g.rank == 0:
        h = x * w
        h.backward(torch.ones_like(h), inputs=[w], retain_graph=True)
        work = g.reduce(w.grad)
        h.backward(torch.ones_like(h) * 2, inputs=[x])
        other = g.reduce(z)
        g.send(x.grad)
    else:
        assert g.recv() == [4.0] * 4
        w.grad = g.full(1)
        work = g.reduce(w.grad)
        other = g.reduce(z)
    work.wait()
    other.wait()
    assert w.grad.tolist() == [4.0] * 4
    assert z.tolist() == [2.0] * 4


def strict(device: str) -> None:
    with lazytpu.mode("strict"):
        send_after_a_collective(device)
        recv_after_a_collective(device)


def waits_for_both(device: str) -> None:
    """Deadlocks."""
    g = Group(device)
    x = g.full(1)
    if g.rank == 0:
        g.reduce(x).wait()
        g.send(x)
    else:
        g.recv()
        g.reduce(x).wait()


def what_waits_is_not_overwritten(device: str) -> None:
    """A value that was computed, which a cut that waits needs, is overwritten."""
    g = Group(device)
    x, p = g.full(g.rank + 1.0), g.full(2)
    if g.rank == 0:
        y = p * 3
        work = g.reduce(x)
        z = y * 1
        if device == "tpu":
            z = x + y
        g.cut()
        assert y.tolist() == [6.0] * 4
        y.mul_(5)
        g.cut()
        g.send(y)
    else:
        assert g.recv() == [30.0] * 4
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4
    if g.rank == 0 and device == "tpu":
        assert z.tolist() == [9.0] * 4
