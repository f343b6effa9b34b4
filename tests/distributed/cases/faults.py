"""Collectives that do not match, and ranks that are lost. Each function runs on both ranks."""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lazytpu.distributed
from lazytpu.distributed.host_tensors import HostWork
from lazytpu.distributed.turns import Collective
from lazytpu.engine.launching.compiled import Compiled


def _error(group: Any, call: Callable[[int, Any], torch.Tensor]) -> str:
    """Return the error of reading the result of `call`."""
    try:
        call(dist.get_rank(), group).cpu()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def _reduced(n: int, dtype: torch.dtype, group: Any) -> torch.Tensor:
    x = torch.ones(n, dtype=dtype, device="tpu")
    dist.all_reduce(x, group=group)
    return x


def mismatched(what: str) -> str:
    """Return the error of a mismatch. Its group is broken for good; other groups work."""
    group: Any = dist.new_group([0, 1])
    f32, rank = torch.float32, dist.get_rank()

    def shape(rank: int, group: Any) -> torch.Tensor:
        return _reduced(4 + rank, f32, group)

    def dtype(rank: int, group: Any) -> torch.Tensor:
        return _reduced(4, torch.int32 if rank else f32, group)

    def order(rank: int, group: Any) -> torch.Tensor:
        if rank == 0:
            return _reduced(4, f32, group)
        x = torch.ones(4, device="tpu")
        dist.broadcast(x, 0, group=group)
        return x

    if what.startswith("second use: "):
        what = what.removeprefix("second use: ")
        first = _reduced(4, f32, group)
        assert rank or first.tolist() == [2.0] * 4
    calls = {"shape": shape, "dtype": dtype, "order": order}
    text = _error(group, calls[what])
    again = _error(group, lambda rank, group: _reduced(4, f32, group))
    assert "disagree" in again
    assert _reduced(4, f32, dist.group.WORLD).tolist() == [2.0] * 4
    assert rank in (0, 1)
    return text


def two_lines() -> str:
    """The same op at two lines, where the second call does not match."""
    group: Any = dist.new_group([0, 1])
    x, half = torch.ones(4, device="tpu"), torch.ones(2, device="tpu")
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2.0] * 4
    x = torch.ones(4, device="tpu")
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=group)
    else:
        dist.all_reduce(half, group=group)
    return _error(group, lambda rank, group: half if rank else x)


def other_orders_of_groups() -> list[str]:
    """Two groups of the same ranks, whose collectives of equal sizes each rank calls in another order; then in the same
    order."""
    groups: list[Any] = [dist.new_group([0, 1]) for _ in range(2)]
    values = [torch.full((3,), 1.0 + i, device="tpu") for i in range(2)]
    for i in (0, 1) if dist.get_rank() == 0 else (1, 0):
        dist.all_reduce(values[i], group=groups[i])
    with pytest.raises(RuntimeError) as raised:
        values[0].tolist()
    dist.barrier()
    good: list[Any] = [dist.new_group([0, 1]) for _ in range(2)]
    for i in (0, 1):
        x = torch.full((3,), 1.0 + i, device="tpu")
        dist.all_reduce(x, group=good[i])
        assert x.tolist() == [2.0 + 2 * i] * 3
    return [str(raised.value)]


def missing(what: str) -> str:
    """Rank 1 does not arrive at a call that launches no program."""
    short: Any = datetime.timedelta(seconds=1)
    group: Any = dist.new_group([0, 1], timeout=short)
    waiting: dict[str, Callable[[], Any]] = {
        "barrier": lambda: dist.barrier(group),
        "new_group": lambda: dist.new_group([0, 1], timeout=short),
        "CPU tensors": lambda: dist.all_reduce(torch.ones(3), group=group),
        "handle": lambda: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
        "message": lambda: dist.recv(torch.ones(3, device="tpu"), 1, group=group),
    }
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as raised:
            waiting[what]()
        text = str(raised.value)
    else:
        text = ""
    dist.barrier()
    if what == "new_group" and dist.get_rank() == 1:  # torch counts the groups, on each rank
        with pytest.raises(RuntimeError, match="rank 0 waited 1 s"):
            waiting[what]()
    return text


def messages_that_disagree() -> list[str]:
    """Without comparison, gloo would fill part of a larger buffer, ignore dtypes, and abort for a smaller buffer."""
    texts: list[str] = []
    for device, size, dtype in (("tpu", 6, torch.float32), ("cpu", 2, torch.float32), ("tpu", 4, torch.int32)):
        sent, received = torch.ones(4, device=device), torch.ones(size, dtype=dtype, device=device)
        with pytest.raises(RuntimeError) as raised:
            dist.send(sent, 1) if dist.get_rank() == 0 else dist.recv(received, 0)
        texts.append(str(raised.value))
    kept = torch.full((3,), 1.0 + dist.get_rank(), device="tpu")
    dist.send(kept, 1) if dist.get_rank() == 0 else dist.recv(kept)
    assert kept.tolist() == [1.0] * 3
    return texts


def host_tensors_that_disagree() -> list[str]:
    """Without comparison, gloo would abort the process. Asynchronous calls are compared, too, and earlier ones
    complete."""
    texts: list[str] = []
    for is_async in (False, True):
        group: Any = dist.new_group([0, 1])
        before, x = torch.ones(2), torch.ones(4 + dist.get_rank())
        first: Any = dist.all_reduce(before, group=group, async_op=True)
        with pytest.raises(RuntimeError) as raised:
            _reduce_on_host(x, group, is_async)
        texts.append(str(raised.value))
        first.wait()
        assert before.tolist() == [2.0] * 2
    return texts


def _reduce_on_host(x: torch.Tensor, group: Any, is_async: bool) -> None:
    work: Any = dist.all_reduce(x, group=group, async_op=is_async)
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def stops_inside_gloo() -> str:
    """Rank 1 stops when all have come to a collective of CPU tensors, before gloo sends anything."""
    group: Any = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
    start = HostWork.start

    def stop_and_start(self: HostWork) -> None:
        HostWork.start = start
        os.kill(os.getpid(), signal.SIGSTOP)
        start(self)

    if dist.get_rank() == 1:
        HostWork.start = stop_and_start
    with pytest.raises(RuntimeError) as raised:
        dist.all_reduce(torch.ones(3), group=group)
    return str(raised.value)


def handles_of_host_tensors() -> None:
    """They start when all ranks have called them, in call order, whatever the script does meanwhile."""
    values = [torch.full((n,), 1.0 + dist.get_rank()) for n in (2, 3, 4)]
    works: list[Any] = [dist.all_reduce(value, async_op=True) for value in values[:2]]
    dist.all_reduce(values[2])
    works[1].get_future().wait()
    while not works[0].is_completed():
        time.sleep(0.01)
    assert works[0].is_success()
    assert works[0].exception() is None
    assert [value.tolist() for value in values] == [[3.0] * n for n in (2, 3, 4)]
    x = torch.ones(2)
    work: Any = dist.all_reduce(x, async_op=True)
    while not work.is_completed():  # no rank waits for it
        time.sleep(0.01)
    assert x.tolist() == [2.0] * 2


def too_late() -> str:
    """Rank 1 does not arrive at all."""
    group: Any = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0:
        return _error(group, lambda rank, group: _reduced(4, torch.float32, group))
    time.sleep(2)
    return _error(group, lambda rank, group: _reduced(4, torch.float32, group))


def killed() -> list[str]:
    """Rank 1 is killed before it arrives. Returns the errors of rank 0's calls after that."""
    x = torch.ones(4, device="tpu")
    assert _reduced(4, torch.float32, dist.group.WORLD).tolist() == [2.0] * 4
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    calls: list[Callable[[], Any]] = [
        lambda: _reduced(4, torch.float32, dist.group.WORLD).cpu(),
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
        lambda: dist.all_gather_object([None, None], 3),
        lambda: dist.send(x, 1),
        lambda: dist.recv(x, 1),
        lambda: dist.all_to_all_single(x, x, [2, 2], [2, 2]),
        lambda: dist.new_group([0, 1]),
    ]
    texts: list[str] = []
    for call in calls:
        with pytest.raises(RuntimeError) as raised:
            call()
        texts.append(str(raised.value))
    assert (x + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    return texts


def helper_killed(what: str = "helper", by: int = 0) -> str:
    """The helper, or the relay that rank `by` has started, is killed between two collectives."""
    assert _reduced(4, torch.float32, dist.group.WORLD).tolist() == [float(dist.get_world_size())] * 4
    if dist.get_rank() == by:
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                if f"\0{what}\0".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)
    time.sleep(1)
    text = _error(dist.group.WORLD, lambda rank, group: _reduced(4, torch.float32, group))
    assert (torch.ones(4, device="tpu") + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    return text


def ends_inside(how: int, n: int) -> str:
    """Rank 1 gets a signal when all have agreed, just before it launches: the other ranks are inside the collective
    already."""
    members = list(range(dist.get_world_size()))
    group: Any = dist.new_group(members, timeout=datetime.timedelta(seconds=1))
    second: Any = dist.new_group(members, timeout=datetime.timedelta(seconds=5))
    assert _reduced(4, torch.float32, group).tolist() == [float(len(members))] * 4
    agree = Collective.wait

    def agree_and_end(self: Collective) -> None:
        agree(self)
        if self.entry.group.startswith(group.key):
            time.sleep(0.3)
            os.kill(os.getpid(), how)
            time.sleep(0.1)  # another thread may take the signal

    if dist.get_rank() == 1:
        Collective.wait = agree_and_end
    start = time.monotonic()
    try:
        value = _reduced(n, torch.float32, group).cpu()
    except RuntimeError as error:
        text = str(error)
    else:  # the others' data may have arrived already
        assert dist.get_rank() == 1
        assert torch.equal(value, torch.full((n,), float(len(members))))
        text = _error(group, lambda rank, group: _reduced(n, torch.float32, group))
    Collective.wait = agree
    assert time.monotonic() - start < 6 or dist.get_rank() == 1
    assert (torch.ones(4, device="tpu") + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    for broken_group in (group, second):  # both use the connections that are cut
        assert "rank 1" in _error(broken_group, lambda rank, group: _reduced(4, torch.float32, group))
    return text


def failing_before() -> str:
    """Rank 1 cannot run the trace that contains its collective: the others do not take its next collective for it."""
    group: Any = dist.new_group([0, 1])
    x = torch.ones(4, device="tpu") * 3
    dist.all_reduce(x, group=group)
    if dist.get_rank() == 1:
        agree = Collective.wait

        def fail(self: Collective) -> None:
            raise MemoryError("no room")

        Collective.wait = fail
        try:
            x.tolist()
        except MemoryError:
            pass
        else:
            raise AssertionError("nothing was raised")
        finally:
            Collective.wait = agree
    return _error(group, lambda rank, group: _reduced(4, torch.float32, group) if rank else x)


def failing_launch() -> str:
    """Rank 1 cannot launch an agreed collective, while rank 0 is inside it."""
    group: Any = dist.new_group([0, 1])
    assert _reduced(4, torch.float32, group).tolist() == [2.0] * 4
    launch = Compiled.launch_watched

    def fail(self: Compiled, *args: Any) -> Any:
        raise MemoryError("no room")

    if dist.get_rank() == 1:
        Compiled.launch_watched = fail
        try:
            _reduced(4, torch.float32, group).tolist()
        except MemoryError:
            pass
        else:
            raise AssertionError("nothing was raised")
        finally:
            Compiled.launch_watched = launch
        assert "0 done" in lazytpu.distributed.report()
        assert "1 failed" in lazytpu.distributed.report()
    return _error(group, lambda rank, group: _reduced(4, torch.float32, group))


def reported() -> str:
    """The report of a rank after two finished collectives and a recorded one."""
    group: Any = dist.new_group([0, 1])
    for n in (2, 3):
        x = _reduced(n, torch.float32, group)
        assert x.tolist() == [2.0] * n
    torch.tpu.synchronize()
    last = _reduced(4, torch.int32, group)
    text = lazytpu.distributed.report()
    assert last.tolist() == [2] * 4
    return text[text.index(f"group {group.key!r}:") :]


def one_rank_fails() -> None:
    """Rank 1 raises, and rank 0 waits for it."""
    assert dist.get_rank() == 0, "this rank fails"
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x)
    x.tolist()
