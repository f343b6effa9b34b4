"""Deferred cuts, which are launched when the other ranks arrive, while the script continues. Each function runs on both
ranks."""

from __future__ import annotations

import datetime
import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lazytpu
from lazytpu.distributed.world import World
from lazytpu.engine.cutting import deferral
from tests.distributed.cases.late_ranks import after, compiled, while_it_waits


def cuts_return_before_the_others_come() -> None:
    """Each takes the results of the previous one, and the memory of overwritten values. Cuts without collectives do so,
    too."""
    x, added = torch.ones(4, device="tpu"), torch.zeros(4, device="tpu")

    def step() -> None:
        total = x * 2
        dist.all_reduce(total)
        x.copy_(total - x)
        lazytpu.mark_step()
        added.add_(x)
        lazytpu.mark_step()

    def two() -> None:
        step()
        step()

    with compiled():
        step()
        assert x.tolist() == [3.0] * 4
        after(two, lambda: None)
        assert (x.tolist(), added.tolist()) == ([27.0] * 4, [39.0] * 4)


def values_before_a_collective_are_read() -> None:
    """Values of a deferred cut that are computed before its collectives can be read. A cut without collectives
    follows."""
    x = torch.ones(4, device="tpu")

    def cut() -> None:
        nonlocal x, before
        before = x * 3
        dist.all_reduce(x)
        lazytpu.mark_step()

    def read() -> None:
        assert before.tolist() == [3.0] * 4

    before = x
    with compiled():
        after(cut, read)
        summed = x + before
        lazytpu.mark_step()
        assert summed.tolist() == [5.0] * 4


def an_interrupt_ends_a_wait_for_the_others() -> None:
    """It ends no other wait: not a read of all or a part of a trace, not a program that does not wait behind others,
    and not a wait after a failure."""
    x = torch.ones(4, device="tpu")
    total, y, group = x, torch.ones(4, device="tpu"), dist.new_group([0, 1])
    lazytpu.mark_step()

    def late() -> None:
        dist.all_reduce(x)
        lazytpu.mark_step()

    def read() -> None:
        if dist.get_rank() == 0:
            with while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                total.tolist()

    def more(group: Any) -> None:
        added = torch.ones(4, device="tpu")
        dist.all_reduce(added, group=group)
        y.add_(added)

    def fail(group: Any) -> None:
        """Fail by itself, before the earlier cuts that it needs are launched: the interrupt waits for nothing more."""
        more(group)
        y.mul_(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(World, "post", lambda world, calls: 1 // 0)
            with while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                lazytpu.mark_step()

    def go_on() -> None:
        if dist.get_rank() == 0:
            with while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                x.tolist()
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(deferral, "_can_wait", lambda program: False)
                with while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                    lazytpu.mark_step()

    with compiled():
        after(late, go_on)
        assert x.tolist() == [4.0] * 4
        total, pending = x * 1, x + 1
        after(lambda: dist.all_reduce(total), read)
        assert (pending.tolist(), total.tolist()) == ([5.0] * 4, [8.0] * 4)
        more(None)
        lazytpu.mark_step()
        assert y.tolist() == [3.0] * 4
        after(late, lambda: dist.get_rank() == 0 and fail(group))
        assert (x.tolist(), y.tolist()) == ([8.0] * 4, [3.0] * 4)


def collectives_of_two_threads_keep_their_order() -> None:
    """A deferred cut is launched by another thread, and one of debug mode by this thread.

    On one rank the operand of the first one takes long, while that of the second one is ready.
    """
    rank, weights = dist.get_rank(), (torch.rand(1000, 1000) / 1000).to("tpu")
    for late in (0, 1, 0, 1):
        second = torch.full((68,), float(rank + 1)).to("tpu") * 10
        slow = weights
        lazytpu.sync()
        for _ in range(20 if rank == late else 1):
            slow = slow @ weights
        first = torch.full((15,), float(rank + 1)).to("tpu") + 0 * slow[0, :15]
        dist.all_reduce(first)
        lazytpu.mark_step()
        with lazytpu.mode("debug"):
            dist.all_reduce(second)
        assert (first.tolist(), second.tolist()) == ([3.0] * 15, [30.0] * 68)


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def handles_wait_for_some_time() -> list[str]:
    """`wait(timeout)` for a collective before and after the other rank has called it."""
    x = torch.ones(4, device="tpu")
    texts: list[str] = []
    handles: list[Any] = []

    def late() -> None:
        handles.append(dist.all_reduce(x, async_op=True))

    def go_on() -> None:
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError) as raised:
                handles[0].wait(datetime.timedelta(milliseconds=50))
            texts.append(str(raised.value))

    with compiled():
        after(late, go_on)
        assert handles[0].wait(datetime.timedelta(seconds=60))
        assert handles[0].wait()
        assert x.tolist() == [2.0] * 4
        failing = torch.ones(4 + dist.get_rank(), device="tpu")
        handle: Any = dist.all_reduce(failing, group=dist.new_group([0, 1]), async_op=True)
        with pytest.raises(RuntimeError) as raised:
            handle.wait(datetime.timedelta(seconds=60))
        texts.append(str(raised.value))
    return texts


def compilations_wait_for_no_rank() -> None:
    """A rank with new programs compiles before it lets the other rank come. It reads values that need no collective,
    even if that takes memory that a deferred cut needs, and cuts for the others."""
    x, local = torch.ones(4).to("tpu"), torch.ones(4).to("tpu")  # not constants, which are read without a cut

    def late() -> None:
        x.add_(local)
        dist.all_reduce(x)
        lazytpu.mark_step()

    def go_on() -> None:
        if dist.get_rank() == 0:
            local.mul_(3).sin_().clamp_(0.5, 1)
            assert local.tolist() == [0.5] * 4
            lazytpu.mark_step()
            cosines.append((x * 5).cos().acos())
            lazytpu.mark_step()

    cosines: list[torch.Tensor] = []
    with lazytpu.options(buckets="off"):
        late()
        assert x.tolist() == [4.0] * 4
        after(late, go_on)
        assert x.tolist() == [10.0] * 4
        if dist.get_rank() == 0:
            torch.testing.assert_close(cosines[0].cpu(), torch.full((4,), 50.0).cos().acos())
