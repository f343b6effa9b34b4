"""Cuts that are launched when the others have come, while the script goes on. Each function runs on both ranks."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import lazytpu
from lazytpu.distributed.world import World
from lazytpu.engine import promising
from lazytpu.engine.launching.launcher import Launcher
from lazytpu.frontend import activation

_names = count()


def _after(late: Callable[[], Any], go_on: Callable[[], Any]) -> None:
    """Rank 1 does what is `late` only when rank 0 has done so, and has gone on: with a launch on the main thread it
    never would."""
    store, name = _get_default_store(), f"launching/{next(_names)}"
    if dist.get_rank() == 0:
        late()
        go_on()
        store.set(name, "")
    else:
        store.wait([name])
        late()
        go_on()


def _compiled() -> Any:
    """Programs of one size, compiled at the cut: other cuts do not wait on the thread."""
    return lazytpu.options(background_compile=0.0, buckets="off")


def cuts_return_before_the_others_come() -> None:
    """Each takes the results of the one before, and the memory of what it overwrites. So do those without
    collectives."""
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

    with _compiled():
        step()
        assert x.tolist() == [3.0] * 4
        _after(two, lambda: None)
        assert (x.tolist(), added.tolist()) == ([27.0] * 4, [39.0] * 4)


def what_needs_no_other_rank_is_read() -> None:
    """Of a cut that waits: what comes before its collectives. A cut without any comes after it."""
    x = torch.ones(4, device="tpu")

    def cut() -> None:
        nonlocal x, before
        before = x * 3
        dist.all_reduce(x)
        lazytpu.mark_step()

    def read() -> None:
        assert before.tolist() == [3.0] * 4

    before = x
    with _compiled():
        _after(cut, read)
        after = x + before
        lazytpu.mark_step()
        assert after.tolist() == [5.0] * 4


def failures_are_raised_where_a_result_is_needed() -> list[str]:
    """And what the failed cut has overwritten is then as before it, also if others were cut after it."""
    rank = dist.get_rank()
    texts: list[str] = []
    needs: list[Callable[[torch.Tensor, torch.Tensor, Any], Any]] = [
        lambda parameter, loss, group: parameter.tolist(),
        lambda parameter, loss, group: loss.tolist(),
        lambda parameter, loss, group: parameter + 1,
        lambda parameter, loss, group: _cut(group),
    ]
    with _compiled():
        for need in needs:
            group: Any = dist.new_group([0, 1])
            other, parameter = torch.ones(2, device="tpu") * 5, torch.ones(4, device="tpu") * 7
            lazytpu.mark_step()
            gradient = torch.ones(4 + rank, device="tpu") * 2
            dist.all_reduce(gradient, group=group)
            parameter.sub_(gradient[:4])
            loss = parameter * 1
            lazytpu.mark_step()
            activation.engine().cutter.drain()  # it has failed
            with pytest.raises(RuntimeError) as raised:
                need(parameter, loss, group)
            texts.append(str(raised.value))
            assert (other.tolist(), parameter.tolist()) == ([5.0] * 2, [7.0] * 4)
            with pytest.raises(RuntimeError, match="disagree"):
                loss.tolist()
            assert (parameter + 1).tolist() == [8.0] * 4
    return texts


def _cut(group: Any) -> None:
    dist.all_reduce(torch.ones(2, device="tpu"), group=group)
    lazytpu.mark_step()


def cuts_that_depend_on_a_failed_one_fail() -> list[str]:
    """They wait behind it, or were recorded before anybody was told; what they overwrote is as before all of them."""
    rank, group, second = dist.get_rank(), dist.new_group([0, 1]), dist.new_group([0, 1])
    x, own = torch.ones(4, device="tpu") * 7, torch.ones(4, device="tpu")

    def step(n: int, group: Any) -> None:
        gradient = torch.ones(n, device="tpu") * 2
        dist.all_reduce(gradient, group=group)
        x.sub_(gradient[:4])
        own.add_(1)

    def late() -> None:
        step(4 + rank, group)
        lazytpu.mark_step()

    def go_on() -> None:
        if rank == 0:  # on rank 1 it may have failed by now
            step(4, second)
            lazytpu.mark_step()
            x.mul_(2)

    with _compiled():
        step(4, None)
        lazytpu.mark_step()
        assert x.tolist() == [3.0] * 4
        _after(late, go_on)
        with pytest.raises(RuntimeError) as raised:
            x.tolist()
        assert x.tolist() == [3.0] * 4
        assert own.tolist() == [2.0] * 4
    return [str(raised.value)]


def cuts_that_catch_up_fail_as_those_that_wait() -> None:
    """Programs that do not wait, here all of them, are launched when those before them were."""
    rank, group, second = dist.get_rank(), dist.new_group([0, 1]), dist.new_group([0, 1])
    store, name = _get_default_store(), f"launching/{next(_names)}"
    x = torch.ones(4, device="tpu") * 7

    def step(n: int, group: Any) -> None:
        gradient = torch.ones(n, device="tpu") * 2
        dist.all_reduce(gradient, group=group)
        x.sub_(gradient[:4])
        lazytpu.mark_step()

    with _compiled(), pytest.MonkeyPatch.context() as patch:
        step(4, None)
        assert x.tolist() == [3.0] * 4
        if rank == 0:
            step(4, group)
            patch.setattr(promising, "_can_wait", lambda program: False)
            with _while_it_waits(lambda: store.set(name, "")), pytest.raises(RuntimeError, match="disagree"):
                step(4, second)
        else:
            store.wait([name])
            step(5, group)
            with pytest.raises(RuntimeError, match="disagree"):
                x.tolist()
        assert x.tolist() == [3.0] * 4


def an_interrupt_ends_a_wait_for_the_others() -> None:
    """And nothing else: neither a wait in a read, of all or of a part of a trace, nor that of a program which does not
    wait behind others, nor one after a failure."""
    x = torch.ones(4, device="tpu")
    total, y, group = x, torch.ones(4, device="tpu"), dist.new_group([0, 1])
    lazytpu.mark_step()

    def late() -> None:
        dist.all_reduce(x)
        lazytpu.mark_step()

    def read() -> None:
        if dist.get_rank() == 0:
            with _while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                total.tolist()

    def more(group: Any) -> None:
        added = torch.ones(4, device="tpu")
        dist.all_reduce(added, group=group)
        y.add_(added)

    def fail(group: Any) -> None:
        """By itself, before what was cut before is launched, which it needs: the interrupt waits for nothing more."""
        more(group)
        y.mul_(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(World, "post", lambda world, calls: 1 // 0)
            with _while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                lazytpu.mark_step()

    def go_on() -> None:
        if dist.get_rank() == 0:
            with _while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                x.tolist()
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(promising, "_can_wait", lambda program: False)
                with _while_it_waits(_interrupt), pytest.raises(KeyboardInterrupt):
                    lazytpu.mark_step()

    with _compiled():
        _after(late, go_on)
        assert x.tolist() == [4.0] * 4
        total, left = x * 1, x + 1
        _after(lambda: dist.all_reduce(total), read)
        assert (left.tolist(), total.tolist()) == ([5.0] * 4, [8.0] * 4)
        more(None)
        lazytpu.mark_step()
        assert y.tolist() == [3.0] * 4
        _after(late, lambda: dist.get_rank() == 0 and fail(group))
        assert (x.tolist(), y.tolist()) == ([8.0] * 4, [3.0] * 4)


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def _while_it_waits(then: Callable[[], Any]) -> Iterator[None]:
    """Calls `then` on a thread, when the main thread waits for what is launched."""
    main = threading.main_thread().ident
    assert main is not None

    def call() -> None:
        while not _waits(sys._current_frames()[main]):
            time.sleep(0.01)
        then()

    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join()


def _waits(frame: Any) -> bool:
    while frame is not None and frame.f_code is not Launcher._wait.__code__:
        frame = frame.f_back
    return frame is not None


def handles_wait_for_some_time() -> list[str]:
    """`wait(timeout)` of what the other rank does not call yet, and of what it has called."""
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

    with _compiled():
        _after(late, go_on)
        assert handles[0].wait(datetime.timedelta(seconds=60))
        assert handles[0].wait()
        assert x.tolist() == [2.0] * 4
        failing = torch.ones(4 + dist.get_rank(), device="tpu")
        handle: Any = dist.all_reduce(failing, group=dist.new_group([0, 1]), async_op=True)
        with pytest.raises(RuntimeError) as raised:
            handle.wait(datetime.timedelta(seconds=60))
        texts.append(str(raised.value))
    return texts


def a_failure_is_raised_once() -> None:
    """Though a cut that was waiting when it was raised fails only then, since the group is broken."""
    rank, group = dist.get_rank(), dist.new_group([0, 1])
    both_cut, told = threading.Event(), threading.Event()
    fail = promising.PromisingCutter.failed
    numbers = count()

    def late(self: Any, cut: Any, reason: Any) -> Any:
        assert (told if next(numbers) else both_cut).wait(60)
        return fail(self, cut, reason)

    def step(n: int) -> torch.Tensor:
        x = torch.ones(n, device="tpu")
        dist.all_reduce(x, group=group)
        lazytpu.mark_step()
        return x

    with _compiled():
        x = torch.ones(4, device="tpu")
        dist.all_reduce(x)
        lazytpu.mark_step()
        assert x.tolist() == [2.0] * 4
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(promising.PromisingCutter, "failed", late)
            store, name = _get_default_store(), f"launching/{next(_names)}"
            if rank == 0:
                lost = [step(4), step(4)]
                store.set(name, "")
            else:
                store.wait([name])
                lost = [step(5), step(5)]
            both_cut.set()
            cutter: Any = activation.engine().cutter
            while not cutter.has_untold():
                time.sleep(0.01)
            with pytest.raises(RuntimeError, match="disagree"):
                cutter.inflight.raise_first(cutter.inflight.errors)
            told.set()
            cutter.drain()
        dist.barrier()
        for each in lost:
            with pytest.raises(RuntimeError, match="disagree"):
                each.tolist()
        assert x.tolist() == [2.0] * 4


def what_fails_on_the_thread_that_serves_others_is_raised() -> None:
    """Before the script cuts something else, which loses nothing; where it reads what is lost; or at a barrier."""
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
        made = torch.ones(4, device="tpu")
        dist.all_reduce(made, group=group)
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"rank 1 failed before .*MemoryError: no room"):
                made.tolist()
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(World, "post", _no_room)
                while activation.engine().inflight.errors == []:
                    time.sleep(0.01)
            then(x, made)
        assert (x + 1).tolist() == [4.0] * 4
        dist.barrier()


def _no_room(world: World, calls: Any) -> Any:
    raise MemoryError("no room")


def what_is_to_be_compiled_waits_for_nobody() -> None:
    """A rank whose programs are new does what it can before it lets the other one come: it reads what needs no result
    of a collective, also if that takes memory that a cut needs which waits, and cuts what needs one."""
    x, own = torch.ones(4).to("tpu"), torch.ones(4).to("tpu")  # no constants, which are read without a cut

    def late() -> None:
        x.add_(own)
        dist.all_reduce(x)
        lazytpu.mark_step()

    def go_on() -> None:
        if dist.get_rank() == 0:
            own.mul_(3).sin_().clamp_(0.5, 1)
            assert own.tolist() == [0.5] * 4
            lazytpu.mark_step()
            after.append((x * 5).cos().acos())
            lazytpu.mark_step()

    after: list[torch.Tensor] = []
    with lazytpu.options(buckets="off"):
        late()
        assert x.tolist() == [4.0] * 4
        _after(late, go_on)
        assert x.tolist() == [10.0] * 4
        if dist.get_rank() == 0:
            torch.testing.assert_close(after[0].cpu(), torch.full((4,), 50.0).cos().acos())
