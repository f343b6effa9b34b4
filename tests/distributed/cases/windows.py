"""Cuts whose collectives run in one program with everything else (`collectives="together"`). Each function runs on all
ranks."""

from __future__ import annotations

import datetime
import os
import random
import signal
import sys
import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.cutting import windows
from lazytpu.engine.cutting.windows import Whole, Window
from lazytpu.rehearsal.rehearse import rehearse
from tests.distributed.cases import random_programs
from tests.distributed.cases.together import counts, together, trained


def steady_steps_are_one_program() -> None:
    """Also while the program is compiled in the background, where it begins later.

    A step may run in pieces in between: the autograd engine's thread may still hold a result of the backward pass on
    one rank, which is another program.
    """
    for kind in ("ddp", "fsdp2"):
        expected = trained(kind, 10)
        with together():
            before = counts()
            losses = trained(kind, 10)
            windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
        assert windows_run > split, f"{kind}: {windows_run} windows, {split} split\n{lazytpu.explain()}"
        with together(background=10.0):
            torch.testing.assert_close(trained(kind, 10), expected, rtol=1e-4, atol=1e-6)
        assert any(entry.whole for entry in lazytpu.explain().together)
        assert "as one program" in str(lazytpu.explain())


def parameters_are_gathered_again_for_the_backward_pass() -> None:
    """FSDP2 frees the parameters of a layer after its forward pass: its second gather is not merged with the first."""
    with together():
        assert trained("fsdp2", 4)
    assert wiring.ENGINE is not None
    states = [state for state in list(wiring.ENGINE.traces._ends) if state.plan is not None and state.plan.whole]
    recorded = [sum("all_gather" in str(record.op) for record in state.records()) for state in states]
    programs = [program for program in lazytpu.explain() if program.code == "whole"]
    gathers = [lazytpu.graphs()[program.number].text().count("lazytpu.all_gather ") for program in programs]
    assert max(gathers) == max(recorded) == 4, f"{gathers} of {recorded}"


def rehearsals_list_one_program() -> None:
    """As a steady step runs, and without effects on the training."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8).to("tpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 8, device="tpu")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step().item(), step().item()]
    with together():
        programs = [program for program in rehearse(step) if any(record.collective for record in program.records)]
        assert len(programs) == 1
        assert len(programs[0].records) > 5
        losses += [step().item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)


def diverging_ranks_run_pieces() -> None:
    for kind in ("ddp", "fsdp2"):
        expected = trained(kind, 12)
        with together(recurrences=1):
            before = counts()
            losses = trained(kind, 12, reads=True)
            windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
        assert windows_run > 0
        assert split > 0 or dist.get_rank() == 0


def _step(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """A cut with a collective between other ops."""
    y = (x * 0.5).sin()
    dist.all_reduce(y, group=group)
    z = y + x
    lazytpu.mark_step()
    return z


def _wholes() -> list[Whole]:
    """Return the whole programs of this process."""
    assert wiring.ENGINE is not None
    plans = [state.plan for state in list(wiring.ENGINE.traces._ends)]
    return [whole for plan in plans if plan is not None for whole in plan.whole.values()]


def a_slow_compilation_is_waited_for() -> None:
    """It began in the background on one rank, and ends after `background_compile` was set to 0."""
    x = torch.ones(4, device="tpu")
    build, slow = Compiler.build, threading.Event()

    def build_late(self: Any, prepared: Any) -> Any:
        if prepared.making.entry.code == "whole":
            slow.wait()
        return build(self, prepared)

    assert wiring.ENGINE is not None
    background = wiring.ENGINE.background
    with (
        pytest.MonkeyPatch.context() as patch,
        lazytpu.options(cache_dir=None),  # the other rank's program would be ready
        together(recurrences=1, background=10.0),
    ):
        if dist.get_rank() == 1:
            patch.setattr(background, "build", partial(build_late, wiring.ENGINE.compiler))
        for _ in range(3):
            _step(x)
        lazytpu.sync()
        assert dist.get_rank() == 0 or background.unfinished()
        threading.Timer(0.5, slow.set).start()
        with together(recurrences=1):
            before = counts()
            for _ in range(3):
                _step(x)
            assert counts() == (before[0] + 3, before[1])


def different_marks_ask_less_often() -> None:
    """And at the same cuts on all ranks, so that they are whole again once the marks are equal."""
    x = torch.ones(3, device="tpu")
    with together(recurrences=1):
        for _ in range(4):
            _step(x)
        before = counts()
        if dist.get_rank() == 1:
            for whole in _wholes():
                whole.digest = f"other {whole.digest}"
        for _ in range(64):
            _step(x)
        _, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
        assert windows.PATIENCE <= split < 24
        if dist.get_rank() == 1:
            for whole in _wholes():
                whole.digest = whole.digest.removeprefix("other ")
        before = counts()
        for _ in range(80):
            z = _step(x)
        assert counts()[0] - before[0] >= 8
    torch.testing.assert_close(z.cpu(), dist.get_world_size() * torch.full((3,), 0.5).sin() + 1)


def ranks_get_the_difference() -> None:
    """Rank 0 keeps a result alive, or reads one in the middle; the explanation of the other ranks names it."""

    def step(x: torch.Tensor, keeps: bool, reads: bool) -> tuple[torch.Tensor, Any]:
        loss = (x * 0.25).cos()
        y = loss * 2
        dist.all_reduce(y)
        if reads:
            y.tolist()
        z = y.exp() + x
        kept = loss if keeps else None
        del loss
        lazytpu.mark_step()
        return z, kept

    x = torch.ones(9, device="tpu")
    kept_alive, cut_early = "rank 0 keeps the result of `cos` at ", "rank 0 cut behind `lazytpu_dist.all_reduce` at "
    for keeps, expected in ((True, kept_alive), (False, cut_early)):
        with together(recurrences=0):
            for _ in range(3):
                step(x, False, False)
            for _ in range(4):
                mine = dist.get_rank() == 0
                kept = step(x, keeps and mine, not keeps and mine)
                lazytpu.sync()  # otherwise later steps are posted before the first answer
        assert kept[0].isfinite().all()
        text = str(lazytpu.explain())
        assert dist.get_rank() == 0 or expected in text, text


def a_refused_program_on_one_rank() -> None:
    """All ranks run pieces, and that rank says why."""
    prepare = Compiler.prepare

    def refuse(self: Any, trace: Any, live: Any, dead: Any, because: Any = None, of_job: Any = ()) -> Any:
        if because is not None and because.code == "whole":
            raise ValueError("this is refused")
        return prepare(self, trace, live, dead, because, of_job)

    x = torch.ones(5, device="tpu")
    with together(recurrences=0):
        before = counts()
        if dist.get_rank() == 1:
            Compiler.prepare = refuse
        try:
            for _ in range(4):
                z = _step(x)
        finally:
            Compiler.prepare = prepare
        assert counts()[0] == before[0]
    torch.testing.assert_close(z.cpu(), dist.get_world_size() * torch.full((5,), 0.5).sin() + 1)
    assert dist.get_rank() != 1 or "ValueError: this is refused" in str(lazytpu.explain())


def cuts_that_have_no_program() -> None:
    """Collectives of constants, which XLA would compute without the other ranks; and modes that run op by op."""
    with together(recurrences=0):
        before = counts()
        for _ in range(3):
            x = torch.ones(6, device="tpu")
            dist.all_reduce(x)
            lazytpu.mark_step()
        assert x.tolist() == [float(dist.get_world_size())] * 6
        with lazytpu.mode("strict"):
            for _ in range(3):
                _step(x)
        assert counts() == before


def groups_of_the_same_ranks() -> None:
    """A cut with collectives of two groups."""
    members = list(range(dist.get_world_size()))
    first: Any = dist.new_group(members)
    second: Any = dist.new_group(members)
    x = torch.ones(7, device="tpu")
    with together(recurrences=0):
        before = counts()
        for _ in range(3):
            y = x * 2
            dist.all_reduce(y, group=first)
            z = y + 1
            dist.all_reduce(z, dist.ReduceOp.MAX, group=second)
            dist.all_reduce(y, group=first)
            lazytpu.mark_step()
            del y
        after = counts()
        assert after[0] - before[0] == 3, f"{before} {after}\n{lazytpu.explain()}"
    assert z.tolist() == [2.0 * len(members) + 1] * 7


def random_programs_together(seed: int) -> None:
    """Run a program three times: its cuts recur, as far as the ranks' own choices allow."""
    with together(recurrences=0):
        for _ in range(3):
            random_programs.run(seed)
        lazytpu.sync()


def fails(where: str, how: str) -> list[str]:
    """Rank 1 fails before it posts a cut, or after the answer "whole". Return the errors of the lost results."""
    members = list(range(dist.get_world_size()))
    group: Any = dist.new_group(members, timeout=datetime.timedelta(seconds=6 if how == "stop" else 60))
    x = torch.ones(4, device="tpu")
    launch = Window._launch

    def end() -> None:
        if how == "raise":
            raise MemoryError("no room")
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    def end_and_launch(self: Window, turns: Any, cut: Any) -> None:
        end()
        launch(self, turns, cut)

    with together(recurrences=0):
        before = counts()
        for _ in range(3):
            _step(x, group)
        assert counts()[0] - before[0] == 3
        if dist.get_rank() == 1:
            if where == "inside":
                Window._launch = end_and_launch
            else:
                end()
        try:
            y = (x * 0.5).sin()
            local = y.exp()
            dist.all_reduce(y, group=group)
            z = y + x
            lazytpu.mark_step()
            texts: list[str] = []
            for value in (local, z):
                try:
                    value.tolist()
                except (RuntimeError, MemoryError) as error:
                    texts.append(f"{type(error).__name__}: {error}")
            with pytest.raises(RuntimeError) as raised:
                _step(x, group).tolist()
            texts.append(str(raised.value))
        finally:
            Window._launch = launch
    assert (torch.ones(4, device="tpu") + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    return texts


def random_faults(seed: int) -> str:
    """Run random steps, in one of which a rank is killed, stops or raises: before it posts the step's collectives, or
    after an answer. Return the error of this rank."""
    size, draw = dist.get_world_size(), random.Random(seed)
    members = list(range(size))
    how, where = draw.choice(("raise", "kill", "stop")), draw.choice(("before", "inside"))
    timeout = datetime.timedelta(seconds=3 if how == "stop" else 30)
    partitions = [[members]] * 2
    if size == 4 and draw.random() < 0.6:  # rows and columns of a mesh
        partitions = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    of_rank = [{rank: part for part in parts for rank in part} for parts in partitions]
    groups: list[Any] = []
    for parts in partitions:
        group_of = {tuple(part): dist.new_group(part, timeout=timeout) for part in parts}
        groups.append(group_of[tuple(of_rank[len(groups)][dist.get_rank()])])
    kinds = [[(draw.randrange(2), draw.randrange(3)) for _ in range(draw.randint(1, 4))] for _ in range(2)]
    steps = [draw.choice(kinds) for _ in range(12)]
    victim, fatal = draw.randrange(size), draw.randrange(6, 12)
    launch, own = Window._launch, random.Random(f"{seed} {dist.get_rank()}")

    def end() -> None:
        if how == "raise":  # nothing catches it
            sys.excepthook(MemoryError, MemoryError("no room"), None)
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    def end_and_launch(self: Window, turns: Any, cut: Any) -> None:
        Window._launch = launch
        if how == "raise":
            raise MemoryError("no room")
        end()
        launch(self, turns, cut)

    x, expected = torch.full((4,), dist.get_rank() + 1.0, device="tpu"), torch.arange(1.0, size + 1)
    error = ""
    with together(recurrences=draw.randrange(2)):
        try:
            for number, step in enumerate(steps):
                if dist.get_rank() == victim and number == fatal:
                    if where == "before":
                        end()
                    else:
                        Window._launch = end_and_launch
                for group, kind in step:
                    y = x * 0.5
                    dist.all_reduce(y, (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)[kind], groups[group])
                    x = (x + y) * 0.5
                    parts = [expected[of_rank[group][rank]] for rank in members]
                    reduced = torch.stack([(part.sum(), part.max(), part.min())[kind] for part in parts]) * 0.5
                    expected = (expected + reduced) * 0.5
                if own.random() < 0.2:
                    x.tolist()  # a cut that the other ranks do not have
                lazytpu.mark_step()
                if number < fatal and own.random() < 0.5:
                    torch.testing.assert_close(x.cpu(), expected[dist.get_rank()].expand(4))
            if dist.get_rank() == victim and Window._launch is not launch:
                end()  # no window came
            for group in groups:
                dist.all_reduce(x, group=group)
            x.tolist()
        except (RuntimeError, MemoryError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        Window._launch = launch
    assert (torch.ones(4, device="tpu") + 1).tolist() == [2.0] * 4, "what needs no other rank goes on"
    return f"{victim} {how} {where} {error}"
