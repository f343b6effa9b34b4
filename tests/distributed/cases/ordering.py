"""Collectives, messages and barriers in orders that gloo allows: a call waits only for its dependencies. Each function
runs on both ranks, on the device and, with gloo, on the CPU."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lazytpu

SECONDS = 20.0  # a deadlock becomes an error after this time


class _Group:
    """A group of both ranks, for tensors of one device."""

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
        buffer = self.full(0)
        dist.recv(buffer, 1 - self.rank, group=self.group)
        return buffer.tolist()

    def cut(self) -> None:
        if self.device == "tpu":
            lazytpu.mark_step()


def a_message_after_a_collective(device: str) -> None:
    """Rank 0 begins the collective, and sends; rank 1 receives first. Then in the other direction."""
    g = _Group(device)
    x, z = g.full(g.rank + 1), g.full(g.rank + 1)
    if g.rank == 0:
        first = g.reduce(x)
        g.send(g.full(5) + 1)
        second = g.reduce(z)
        assert g.recv() == [7.0] * 4
    else:
        assert g.recv() == [6.0] * 4
        first = g.reduce(x)
        g.send(g.full(5) + 2)
        second = g.reduce(z)
    first.wait()
    second.wait()
    assert (x.tolist(), z.tolist()) == ([3.0] * 4, [3.0] * 4)


def batches_after_collectives(device: str) -> None:
    g = _Group(device)
    xs = [g.full(g.rank + i) for i in range(5)]
    works: list[Any] = []
    peer = 1 - g.rank
    for turn in range(2):
        if turn == g.rank:
            works = [g.reduce(x) for x in xs]
        else:
            mine, received = g.full(g.rank + 1) * 2, g.full(0)
            ops = [dist.P2POp(dist.isend, mine, peer, g.group), dist.P2POp(dist.irecv, received, peer, g.group)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert received.tolist() == [2.0 * peer + 2] * 4
    for work in works:
        work.wait()
    assert [x.tolist() for x in xs] == [[2.0 * i + 1] * 4 for i in range(5)]


def a_barrier_of_another_group(device: str) -> None:
    g, second = _Group(device), _Group(device)
    x = g.full(g.rank + 1)
    if g.rank == 0:
        work = g.reduce(x)
        dist.barrier(second.group)
    else:
        dist.barrier(second.group)
        work = g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4


def collectives_of_cpu_tensors(device: str) -> None:
    """Collectives of another group, before a message and after it; and objects."""
    g, second = _Group(device), _Group(device)
    x, host = g.full(g.rank + 1), torch.ones(2)
    objects: list[Any] = [None, None]
    work: Any = g.reduce(x) if g.rank == 0 else None
    dist.all_reduce(host, group=second.group)
    if g.rank == 0:
        g.send(g.full(5) + 1)
    else:
        assert g.recv() == [6.0] * 4
    dist.all_gather_object(objects, g.rank, group=second.group)
    work = work or g.reduce(x)
    work.wait()
    assert x.tolist() == [3.0] * 4
    assert (host.tolist(), objects) == ([2.0] * 2, [0, 1])


def cut_before_it_is_sent(device: str) -> None:
    """The sent value is part of a cut that waits for the collective, and keeps its contents."""
    g = _Group(device)
    x, p = g.full(g.rank + 1), g.full(2)
    if g.rank == 0:
        work = g.reduce(x)
        y = p * 3
        g.cut()
        g.send(y)
        y.add_(1)
        g.cut()
    else:
        assert g.recv() == [6.0] * 4
        work = g.reduce(x)
        y = g.full(7)
    work.wait()
    assert (y + x).tolist() == [10.0] * 4


def cut_with_a_later_collective(device: str) -> None:
    """It needs a result of a deferred cut, and is before and behind collectives."""
    g = _Group(device)
    x, z, p = g.full(g.rank + 1), g.full(7), g.full(2)
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
    assert (x.tolist(), z.tolist()) == ([3.0] * 4, [14.0] * 4)


def after_one_and_before_another(device: str) -> None:
    """The sent value depends on a collective that both have called, in a cut behind a deferred one."""
    g = _Group(device)
    x, z = g.full(g.rank + 1), g.full(7)
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


def reads_after_a_collective(device: str) -> None:
    """Reads from a deferred cut; and two reads from a pending trace, where the second runs the records that the first
    has left."""
    g = _Group(device)
    x, z, p = g.full(g.rank + 1), g.full(7), g.full(2)
    if g.rank == 0:
        first = g.reduce(x)
        y = p * 3
        g.cut()
        assert y[0].item() == 6
        second = g.reduce(z)
        assert (p * 4).tolist() == [8.0] * 4
        assert (p * 5).tolist() == [10.0] * 4
        g.send(y)
    else:
        g.recv()
        first = g.reduce(x)
        second = g.reduce(z)
    first.wait()
    second.wait()
    assert (x.tolist(), z.tolist()) == ([3.0] * 4, [14.0] * 4)


def more_cuts_than_wait(device: str) -> None:
    g = _Group(device)
    xs = [g.full(g.rank + i) for i in range(7)]
    works: list[Any] = []
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
    """A pipeline's gradients: a read of one leaves no backward pass pending, so the whole trace is cut."""
    g = _Group(device)
    w, x, z = g.full(2).requires_grad_(), g.full(3).requires_grad_(), g.full(1)
    if g.rank == 0:
        h = x * w
        h.backward(torch.ones_like(h), inputs=[w], retain_graph=True)
        first = g.reduce(w.grad)  # pyright: ignore[reportArgumentType]
        h.backward(torch.ones_like(h) * 2, inputs=[x])
        second = g.reduce(z)
        g.send(x.grad)  # pyright: ignore[reportArgumentType]
    else:
        assert g.recv() == [4.0] * 4
        w.grad = g.full(1)
        first = g.reduce(w.grad)
        second = g.reduce(z)
    first.wait()
    second.wait()
    assert w.grad is not None
    assert (w.grad.tolist(), z.tolist()) == ([4.0] * 4, [2.0] * 4)


def many_sizes(device: str) -> None:
    """Programs for many sizes return padded results, which are copied where the script has to continue."""
    g = _Group(device)
    for n in (5, 6, 7, 9, 11):
        x, p = torch.ones(n).to(device), torch.ones(n).to(device)
        if g.rank == 0:
            x = x * 2
            work = g.reduce(x)
            y = (p * 3).cumsum(0)
            g.cut()
            g.send(y)
        else:
            received = torch.zeros(n).to(device)
            dist.recv(received, 0, group=g.group)
            assert received.tolist() == [3.0 * i for i in range(1, n + 1)]
            x = x * 2
            work = g.reduce(x)
        work.wait()
        assert x.tolist() == [4.0] * n


def strict(device: str) -> None:
    """An asynchronous call does not wait; its `wait()` does."""
    with lazytpu.mode("strict"):
        a_message_after_a_collective(device)
        more_cuts_than_wait(device)
        if device == "tpu":
            group: Any = dist.new_group([0, 1])
            work: Any = dist.all_reduce(torch.ones(4 + dist.get_rank(), device="tpu"), group=group, async_op=True)
            with pytest.raises(RuntimeError, match="disagree"):
                work.wait()


def without_comparison(device: str) -> None:
    """A collective waits for the other rank inside its program."""
    with lazytpu.options(collectives="trusted"):
        a_message_after_a_collective(device)
        cut_before_it_is_sent(device)


def operands_of_deferred_cuts_are_not_overwritten(device: str) -> None:
    """A computed value that a deferred cut needs is overwritten by a cut that is not deferred."""
    g = _Group(device)
    x, p = g.full(g.rank + 1), g.full(2)
    if g.rank == 0:
        y = p * 3
        work = g.reduce(x)
        z = x + y if device == "tpu" else g.full(9)  # with gloo that may be too early
        g.cut()
        assert y.tolist() == [6.0] * 4
        y.mul_(5)
        g.cut()
        g.send(y)
    else:
        assert g.recv() == [30.0] * 4
        work = g.reduce(x)
        z = g.full(9)
    work.wait()
    assert (x.tolist(), z.tolist()) == ([3.0] * 4, [9.0] * 4)


def _waits_for_each_other(device: str) -> list[str]:
    """A deadlock, with gloo, too."""
    g = _Group(device, 3)
    x = g.full(1)
    if g.rank == 0:
        g.reduce(x).wait()
    with pytest.raises(RuntimeError) as raised:
        g.send(x) if g.rank == 0 else g.recv()
    return [str(raised.value)]
