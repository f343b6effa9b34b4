"""Deferred cuts that fail when they are launched. Each function runs on both ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import lazytpu
from lazytpu.distributed.world import World
from lazytpu.engine.cutting import deferral
from lazytpu.frontend import activation
from lazytpu.frontend.tensors import recorder
from tests.distributed.cases.late_ranks import after, compiled, new_key, while_it_waits


def failures_are_raised_where_a_result_is_needed() -> list[str]:
    """Values that the failed cut would have overwritten are restored, also if later cuts were made."""
    rank = dist.get_rank()
    texts: list[str] = []
    needs: list[Callable[[torch.Tensor, torch.Tensor, Any], Any]] = [
        lambda parameter, loss, group: parameter.tolist(),
        lambda parameter, loss, group: loss.tolist(),
        lambda parameter, loss, group: parameter + 1,
        lambda parameter, loss, group: _cut(group),
    ]
    with compiled():
        for need in needs:
            group: Any = dist.new_group([0, 1])
            unrelated, parameter = torch.ones(2, device="tpu") * 5, torch.ones(4, device="tpu") * 7
            lazytpu.mark_step()
            gradient = torch.ones(4 + rank, device="tpu") * 2
            dist.all_reduce(gradient, group=group)
            parameter.sub_(gradient[:4])
            loss = parameter * 1
            lazytpu.mark_step()
            activation.engine().cutter.order.drain()  # it has failed
            with pytest.raises(RuntimeError) as raised:
                need(parameter, loss, group)
            texts.append(str(raised.value))
            assert (unrelated.tolist(), parameter.tolist()) == ([5.0] * 2, [7.0] * 4)
            with pytest.raises(RuntimeError, match="disagree"):
                loss.tolist()
            assert (parameter + 1).tolist() == [8.0] * 4
    return texts


def _cut(group: Any) -> None:
    dist.all_reduce(torch.ones(2, device="tpu"), group=group)
    lazytpu.mark_step()


def cuts_that_depend_on_a_failed_one_fail() -> list[str]:
    """They wait behind it, or were recorded before the failure was reported. The values that they overwrote are
    restored."""
    rank, group, second = dist.get_rank(), dist.new_group([0, 1]), dist.new_group([0, 1])
    x, local = torch.ones(4, device="tpu") * 7, torch.ones(4, device="tpu")

    def step(n: int, group: Any) -> None:
        gradient = torch.ones(n, device="tpu") * 2
        dist.all_reduce(gradient, group=group)
        x.sub_(gradient[:4])
        local.add_(1)

    def late() -> None:
        step(4 + rank, group)
        lazytpu.mark_step()

    def go_on() -> None:
        if rank == 0:  # on rank 1 it may have failed already
            step(4, second)
            lazytpu.mark_step()
            x.mul_(2)

    with compiled():
        step(4, None)
        lazytpu.mark_step()
        assert x.tolist() == [3.0] * 4
        after(late, go_on)
        with pytest.raises(RuntimeError) as raised:
            x.tolist()
        assert x.tolist() == [3.0] * 4
        assert local.tolist() == [2.0] * 4
    return [str(raised.value)]


def cuts_that_catch_up_fail_like_deferred_cuts() -> None:
    """Cuts that are not deferred (here all of them) are launched after the earlier ones."""
    rank, group, second = dist.get_rank(), dist.new_group([0, 1]), dist.new_group([0, 1])
    store, name = _get_default_store(), new_key()
    x = torch.ones(4, device="tpu") * 7

    def step(n: int, group: Any) -> None:
        gradient = torch.ones(n, device="tpu") * 2
        dist.all_reduce(gradient, group=group)
        x.sub_(gradient[:4])
        lazytpu.mark_step()

    with compiled(), pytest.MonkeyPatch.context() as patch:
        step(4, None)
        assert x.tolist() == [3.0] * 4
        if rank == 0:
            step(4, group)
            patch.setattr(deferral, "_can_wait", lambda program: False)
            with while_it_waits(lambda: store.set(name, "")), pytest.raises(RuntimeError, match="disagree"):
                step(4, second)
        else:
            store.wait([name])
            step(5, group)
            with pytest.raises(RuntimeError, match="disagree"):
                x.tolist()
        assert x.tolist() == [3.0] * 4


def a_failure_is_raised_once() -> None:
    """A cut that was deferred at that time fails later, since the group is broken; this is not raised again."""
    rank, group = dist.get_rank(), dist.new_group([0, 1])
    both_cut, reported = threading.Event(), threading.Event()
    fail = deferral.Deferral.failed
    numbers = count()

    def late(self: Any, cut: Any, reason: Any) -> Any:
        assert (reported if next(numbers) else both_cut).wait(60)
        return fail(self, cut, reason)

    def step(n: int) -> torch.Tensor:
        x = torch.ones(n, device="tpu")
        dist.all_reduce(x, group=group)
        lazytpu.mark_step()
        return x

    with compiled():
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x)
        lazytpu.mark_step()
        assert x.tolist() == [2.0] * 4
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deferral.Deferral, "failed", late)
            store, name = _get_default_store(), new_key()
            if rank == 0:
                lost = [step(4), step(4)]
                store.set(name, "")
            else:
                store.wait([name])
                lost = [step(5), step(5)]
            both_cut.set()
            order: Any = activation.engine().cutter.order
            while not order.has_untold():
                time.sleep(0.01)
            with pytest.raises(RuntimeError, match="disagree"):
                order.inflight.raise_first(order.inflight.errors)
            reported.set()
            order.drain()
        dist.barrier()
        for value in lost:
            with pytest.raises(RuntimeError, match="disagree"):
                value.tolist()
        assert x.tolist() == [2.0] * 4


def failures_on_the_serving_thread_are_raised() -> None:
    """They are raised before the script makes another cut, which loses nothing; where it reads a lost value; or at a
    barrier."""
    rank = dist.get_rank()
    x = torch.full((4,), 3.0).to("tpu")  # no constant, which is read without a cut

    def cut(x: torch.Tensor, lost: torch.Tensor) -> None:
        with pytest.raises(MemoryError, match="no room"):
            (x + 1).tolist()

    def read(x: torch.Tensor, lost: torch.Tensor) -> None:
        with pytest.raises(MemoryError, match="no room"):
            lost.tolist()

    def meet(x: torch.Tensor, lost: torch.Tensor) -> None:
        with pytest.raises(MemoryError, match="no room"):
            dist.barrier()

    for then in (cut, read, meet):
        group: Any = dist.new_group([0, 1])
        ones = torch.ones(4, device="tpu")
        dist.all_reduce(ones, group=group)
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"rank 1 failed before .*MemoryError: no room"):
                ones.tolist()
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(World, "post", _no_room)
                while activation.engine().inflight.errors == []:
                    time.sleep(0.01)
            then(x, ones)
        assert (x + 1).tolist() == [4.0] * 4
        dist.barrier()


def _no_room(*arguments: Any) -> Any:
    raise MemoryError("no room")


def results_launched_ahead_are_not_lost() -> None:
    """Neither the results of a cut that fails afterwards, nor later ones."""
    rank, group = dist.get_rank(), dist.new_group([0, 1])
    x, p = torch.ones(4 + rank, device="tpu"), torch.full((4,), 2.0).to("tpu")

    def late() -> None:
        dist.all_reduce(x, group=group)
        p.mul_(3)
        lazytpu.mark_step()

    def go_on() -> None:
        if rank == 0:
            assert p.tolist() == [6.0] * 4
            p.add_(1)
            lazytpu.mark_step()

    with compiled():
        after(late, go_on)
        with pytest.raises(RuntimeError, match="disagree"):
            x.tolist()
        assert p.tolist() == [7.0 if rank == 0 else 2.0] * 4


def failures_before_a_launch_begins_are_raised() -> None:
    x = torch.full((4,), 3.0).to("tpu")
    lost = x * 2
    order: Any = activation.engine().cutter.order
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order.cutter.traces, "ended", _no_room)
        with pytest.raises(MemoryError), order.serving():
            recorder().cut()
    del lost
    with pytest.raises(MemoryError, match="no room"):
        (x + 1).tolist()
    assert (x + 1).tolist() == [4.0] * 4
