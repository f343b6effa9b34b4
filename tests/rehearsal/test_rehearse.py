"""Rehearsed steps: their programs are noted, nothing runs, and all state is restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.frontend.tensors import recorder
from lazytpu.rehearsal.rehearse import RehearsedProgram, rehearse
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan


class Training:
    """A small training with all kinds of state: dropout, a norm's statistics, momenta, a schedule, a counter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 2, bias=False), nn.BatchNorm1d(2), nn.Dropout(0.5)).to("tpu")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.x = torch.randn(4, 8)

    def update(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(self.x.to("tpu")).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self) -> float:
        loss = self.update()
        self.schedule.step()
        return loss.item()

    def state(self) -> list[Any]:
        """Return the whole state, as values."""
        tensors = [t.detach().cpu() for t in (*self.model.parameters(), *self.model.buffers())]
        grads = [None if p.grad is None else p.grad.cpu() for p in self.model.parameters()]
        states = [t.cpu() for state in self.optimizer.state.values() for t in state.values()]
        other_state = [self.schedule.last_epoch, self.optimizer.param_groups[0]["lr"], random.getstate()]
        return [*tensors, *grads, *states, *other_state, torch.get_rng_state(), torch.tpu.get_rng_state()]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


def operations(part: RehearsedProgram) -> list[str]:
    return [record.op.__name__ for record in part.records]


@pytest.mark.parametrize("steps", [0, 2])
def test_rehearsal_leaves_no_trace(steps: int):
    training = Training()
    for _ in range(steps):
        training.step()
    before, compiles = training.state(), lazytpu.metrics()["compiles"]
    programs = rehearse(training.step)
    assert lazytpu.metrics()["compiles"] == compiles
    assert same(training.state(), before)
    assert len(programs) == 1 and programs[0].dead


def test_training_continues_unchanged():
    plain, rehearsed = Training(), Training()
    torch.tpu.manual_seed(3)
    expected = [plain.step() for _ in range(4)]
    torch.tpu.manual_seed(3)
    losses = [rehearsed.step(), rehearsed.step()]
    rehearse(rehearsed.step)
    assert [*losses, rehearsed.step(), rehearsed.step()] == expected


def test_repeating_step_is_rehearsed():
    """A first step creates the optimizer's state; the rehearsed step reads and overwrites it."""
    training = Training()
    (program,) = rehearse(training.step)
    (again,) = rehearse(training.step)
    assert operations(program) == operations(again) and len(program.live) == len(again.live)
    parameters = len(list(training.model.parameters()))
    assert len(program.dead) >= 3 * parameters  # parameters and two moments each


def test_run_executes_the_rehearsed_program():
    training = Training()
    (program,) = rehearse(training.step)
    for _ in range(2):
        training.step()
    ran = lazytpu.graphs()[-1]
    assert ran.records == len(program.records)


def zeroed_first(training: Training) -> torch.Tensor:
    return training.update()


def zeroed_last(training: Training) -> torch.Tensor:
    loss = training.update()
    training.optimizer.zero_grad()
    return loss


def read_at_the_end(training: Training) -> float:
    return training.step()


def averaged_afterwards(training: Training) -> None:
    """The records after optimizer.step() run at the beginning of the next call."""
    training.update()
    training.model[0].weight.data.mul_(0.5)


def marked_at_the_end(training: Training) -> torch.Tensor:
    loss = training.update()
    lazytpu.mark_step()
    return loss


def marked_in_the_middle(training: Training) -> torch.Tensor:
    training.optimizer.zero_grad()
    lazytpu.mark_step()
    return training.update()


LOOPS = {
    "fused": [zeroed_first, zeroed_last, read_at_the_end, averaged_afterwards, marked_at_the_end, marked_in_the_middle],
    "lazy": [read_at_the_end, marked_at_the_end, marked_in_the_middle],
}


@pytest.mark.parametrize(("mode", "body"), [(mode, body) for mode, bodies in LOOPS.items() for body in bodies])
def test_loop_runs_the_rehearsed_programs(mode: str, body: Callable[[Training], Any], monkeypatch: pytest.MonkeyPatch):
    """The same programs, with as many results and donated inputs: gradients freed in time are no results."""
    training, ran = Training(), list[tuple[list[str], int, int]]()
    with lazytpu.mode(mode):
        real = recorder()
        cut_trace = real.cut_trace

        def spy(trace: Trace) -> None:
            plan = CutPlan.of(trace.state)
            live = sum(trace.values[slot]() is not None for slot in plan.results)
            inputs = zip(plan.inputs, trace.buffers, strict=True)
            dead = sum(trace.values[slot]() is None and buffer.pins == 1 for slot, buffer in inputs)
            ran.append(([record.op.__name__ for record in trace.state.records()], live, dead))
            cut_trace(trace)

        programs = rehearse(lambda: body(training))
        monkeypatch.setattr(real, "cut_trace", spy)
        for _ in range(5):
            result = body(training)  # noqa: F841, as a loop holds it
        last = ran[-len(programs) :]
    expected = [(operations(program), len(program.live), len(program.dead)) for program in programs]
    assert programs and sorted(last) == sorted(expected)


def test_gradients_freed_before_the_launch_are_not_results():
    training = Training()
    counts = [len(rehearse(lambda body=body: body(training))[0].live) for body in (zeroed_last, zeroed_first)]
    with lazytpu.mode("lazy"):
        (program,) = rehearse(lambda: zeroed_first(training))
    assert counts[0] == counts[1] == len(program.live) - len(list(training.model.parameters()))


def test_read_that_depends_on_little_is_computed():
    """A step may branch on it, for example on whether a mask hides anything."""
    training = Training()
    mask = torch.tensor([1.0, 1.0, 0.0], device="tpu")
    seen: list[bool] = []

    def step() -> None:
        mask.mul_(2)
        seen.append(bool((mask[:2] == 2).all()))
        training.step()

    before = training.state()
    assert len(rehearse(step)) == 2
    assert seen[0] is True
    assert same(training.state(), before) and mask.tolist() == [1, 1, 0]


def test_read_that_depends_on_much_is_zero():
    x, seen = torch.ones(512, 1024, device="tpu"), list[float]()
    lazytpu.sync()
    compiles = lazytpu.metrics()["compiles"]

    def step() -> torch.Tensor:
        incremented = x + 2
        seen.append((x + 1).sum().item())
        return incremented

    rehearse(step)
    assert set(seen) == {0.0} and lazytpu.metrics()["compiles"] == compiles


def test_earlier_values_can_be_read():
    weight = torch.full((3,), 2.0, device="tpu")
    seen: list[list[float]] = []

    def step() -> None:
        seen.append(weight.tolist())
        weight.add_(1)

    rehearse(step)
    # the second call reads the result that the first one would have had
    assert seen[:2] == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]
    assert weight.tolist() == [2.0, 2.0, 2.0]


def test_several_writes_and_views_are_undone():
    base = torch.arange(6.0, device="tpu")

    def step() -> torch.Tensor:
        base[::2].mul_(3)
        lazytpu.mark_step()
        base.view(2, 3)[1].zero_()
        return base * 2

    assert len(rehearse(step)) == 1  # from mark to mark, as in a loop
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    base += 1  # it can still be written
    assert base.tolist() == [1, 2, 3, 4, 5, 6]


def test_kept_results_of_the_step_have_no_value():
    kept: list[torch.Tensor] = []
    x = torch.ones(3, device="tpu")
    rehearse(lambda: kept.append(x + 1))
    with pytest.raises(RuntimeError, match="created in a rehearsal of a step"):
        kept[0].tolist()
    assert x.tolist() == [1, 1, 1]


def test_accumulated_gradients_are_restored():
    training = Training()
    loss = training.model(training.x.to("tpu")).square().mean()
    loss.backward()
    before = training.state()
    rehearse(lambda: training.model(training.x.to("tpu")).square().mean().backward())
    assert same(training.state(), before)


def test_exception_of_the_step_is_raised_and_leaves_no_trace():
    training = Training()
    before = training.state()

    def step() -> None:
        training.step()
        training.model[0].weight.data.add_(1)
        raise KeyError("the step's own")

    with pytest.raises(KeyError, match="the step's own"):
        rehearse(step)
    assert same(training.state(), before)
    assert training.step() > 0


def test_earlier_records_do_not_belong_to_the_step():
    x = torch.ones(3, device="tpu")
    y = x * 5
    (program,) = rehearse(lambda: y + 1)
    assert operations(program) == ["add.Tensor"]
    assert y.tolist() == [5, 5, 5]


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_every_mode_rehearses_whole_programs(mode: str):
    training = Training()
    with lazytpu.mode(mode):
        programs = rehearse(training.step)
    assert len(programs) == 1


def test_shared_tensors_stay_shared():
    x = torch.ones(3, device="tpu")
    y = x.detach()
    step: Callable[[], Any] = lambda: x.mul_(2)  # noqa: E731
    rehearse(step)
    x.add_(1)
    assert x.tolist() == y.tolist() == [2, 2, 2]


def test_unwritten_memory_is_an_operand():
    x = torch.empty(3, device="tpu")
    (program,) = rehearse(lambda: x + 1)
    assert operations(program) == ["add.Tensor"]
    x.fill_(2)  # it can still be written
    assert x.tolist() == [2, 2, 2]


def test_op_that_a_tpu_lacks_is_refused_by_the_call():
    x = torch.ones(3, 3, device="tpu")

    def step() -> torch.Tensor:
        with pytest.raises(NotImplementedError, match=r"linalg_eig\.default: XLA has no eigen.*torch\.linalg\.eigh"):
            torch.linalg.eig(x)
        with pytest.raises(NotImplementedError, match=r"no complex128.*Use float32 or complex64"):
            torch.fft.fft(x.double())
        return x + 1

    (program,) = rehearse(step)
    assert "eig" not in str(operations(program))
    torch.testing.assert_close(torch.linalg.eig(x)[0].cpu(), torch.linalg.eig(x.cpu())[0])  # the CPU has it
    assert rehearse(lambda: torch.linalg.eig(x), platform="cpu")


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # raised by dynamo's imports
@pytest.mark.parametrize("mode", ["fused", "lazy", "strict"])
def test_reassigned_storages_are_restored(mode: str):
    """Copies of whole tensors, also from the host, resizes and writes by graphs assign a storage another value."""

    @torch.compile
    def graph(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(y + 1)
        return x * 2

    with lazytpu.mode(mode):
        tensors = [torch.full((3,), float(i), device="tpu") for i in range(7)]
        a, b, c, d, e, f, g = tensors
        d.copy_(c)  # c and d share a value
        bytes_ = torch.arange(8, dtype=torch.uint8).to("tpu")
        graph(torch.zeros(3, device="tpu"), b)
        expected = [t.tolist() for t in (*tensors, bytes_)]

        def step() -> torch.Tensor:
            a.copy_(b)
            a.add_(1)
            b.copy_(torch.full((3,), 9.0))
            c.add_(1)
            c.copy_(a)
            d.mul_(2)
            graph(e, f)
            f.untyped_storage().copy_(a.untyped_storage())
            g.resize_(6).fill_(5)
            bytes_.view(torch.float32)[0] = 3.0
            return a + b + c + d

        rehearse(step)
        assert torch.equal(g[:3].cpu(), torch.full((3,), 6.0)), "its sizes are not put back, its values are"
        g.resize_(3)
        assert [t.tolist() for t in (*tensors, bytes_)] == expected
        assert step().tolist() == [2.0 + 9.0 + 2.0 + 4.0] * 3
        assert (c.tolist(), e.tolist(), f.tolist()) == ([2.0] * 3, [6.0] * 3, [2.0] * 3)


def test_shared_values_stay_separate():
    """Writes after a rehearsal overwrite no memory that now belongs to another storage."""
    x = torch.arange(4096.0, device="tpu")
    y = torch.zeros(4096, device="tpu")
    y.copy_(x)
    average = torch.zeros(4096, device="tpu")

    def step() -> None:
        average.copy_(x)
        x.mul_(2)
        y.copy_(average)

    rehearse(step)
    for count in range(1, 4):
        x.add_(1)
        lazytpu.mark_step()
        assert torch.equal(y.cpu(), torch.arange(4096.0)) and not average.any()
        assert torch.equal(x.cpu(), torch.arange(4096.0) + count)
