"""A failed check is raised once: in debug mode by the call, otherwise by a read of a dependent value, or by sync."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

import lazytpu
from lazytpu.aten.errors import Check
from lazytpu.engine.errors.lineage import (
    FINE,
    DeviceError,
    ResultGroup,
    RunOutcome,
    lineage,
    note,
    note_guarded,
    to_raise,
)
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.extract import Slots

LATE = ("fused", "lazy", "strict")


@pytest.fixture(params=LATE)
def late(request: pytest.FixtureRequest) -> Iterator[str]:
    """A mode in which calls do not wait for their ops."""
    lazytpu.sync()
    with lazytpu.mode(request.param):
        yield request.param
        lazytpu.sync()  # no failure remains unreported


def row(index: int) -> torch.Tensor:
    return torch.arange(3.0, device="tpu")[torch.tensor([index], device="tpu")]


def singular() -> torch.Tensor:
    return torch.ones(2, 2, device="tpu")


def test_read_raises_only_failures_of_its_value(late: str) -> None:
    x = torch.ones(2, device="tpu")
    bad, good = row(7), x * 2
    lazytpu.mark_step()
    assert good.tolist() == [2.0, 2.0]
    worse, better = bad + 1, good + 1
    lazytpu.mark_step()
    assert (better + 1).tolist() == [4.0, 4.0]
    with pytest.raises(IndexError, match=r"out of bounds .*\(aten.index.Tensor at "):
        (worse * 2).tolist()
    assert bad.shape == (1,)
    assert worse.tolist() == [3.0]  # already reported: the value computed from the clamped index


def test_failure_is_raised_by_the_read_that_depends_on_it(late: str) -> None:
    index, factor = row(7), torch.linalg.cholesky(-torch.eye(2, device="tpu"))
    lazytpu.mark_step()
    with pytest.raises(LinAlgError, match="cholesky"):
        factor.tolist()
    with pytest.raises(IndexError):
        index.tolist()


def test_read_raises_all_failures_it_depends_on(late: str) -> None:
    index, factor = row(7), torch.linalg.cholesky(-torch.eye(2, device="tpu"))
    lazytpu.mark_step()
    with pytest.raises(IndexError) as error:
        (index + factor).tolist()
    assert "LinAlgError" in error.value.__notes__[0]


def test_sync_raises_failures_of_unread_values(late: str) -> None:
    row(7)
    kept = row(-9)
    lazytpu.mark_step()
    with pytest.raises(IndexError):
        lazytpu.sync()
    lazytpu.sync()
    kept.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.linalg.inv(singular()),
        lambda: torch.linalg.solve(singular(), torch.ones(2, device="tpu")),
        lambda: torch.linalg.cholesky(-singular()),
    ],
    ids=["inv", "solve", "cholesky"],
)
def test_factorizations_fail_in_every_mode(call: Callable[[], torch.Tensor]) -> None:
    """Results nobody reads are checked, too, and so is a second call after any sequence of modes."""

    def call_and_read() -> None:
        result = call()
        assert mode != "debug"  # debug mode raises at the call
        result.tolist()

    for mode in ("debug", "strict", "fused", "debug", "lazy", "debug"):
        with lazytpu.mode(mode):
            with pytest.raises(LinAlgError):
                call_and_read()
            if mode != "debug":
                call()
                with pytest.raises(LinAlgError):
                    lazytpu.sync()
            lazytpu.sync()


def test_debug_mode_names_its_line_and_keeps_older_failures() -> None:
    lazytpu.sync()
    older = row(7)
    lazytpu.mark_step()
    with lazytpu.mode("debug"):
        _ = torch.ones(2, device="tpu") + 1
        with pytest.raises(IndexError, match=f"at .*{__name__.rpartition('.')[2]}.py"):
            row(8)
    with pytest.raises(IndexError):
        older.tolist()
    lazytpu.sync()


def test_reading_a_parameter_raises_the_failure_of_its_step() -> None:
    lazytpu.sync()
    table = torch.nn.Embedding(4, 2, device="tpu")
    independent = torch.nn.Parameter(torch.ones(2, device="tpu"))
    optimizer = torch.optim.SGD([*table.parameters()], lr=0.1)
    for index in (1, 9, 2):
        optimizer.zero_grad()
        table(torch.tensor([index], device="tpu")).sum().backward()
        optimizer.step()
    assert (independent * 2).tolist() == [2.0, 2.0]
    with pytest.raises(IndexError):
        table.weight.detach().cpu()
    table.weight.detach().cpu()
    lazytpu.sync()


def test_reported_failure_keeps_nothing_alive() -> None:
    lazytpu.sync()

    class Big:
        pass

    big, bad = Big(), row(7)
    gone = weakref.ref(big)
    with pytest.raises(IndexError):
        bad.tolist()
    del big
    gc.collect()
    assert gone() is None


# -- the lineage of a trace, without a device


def test_results_are_grouped_by_inputs_and_checks() -> None:
    lazytpu.sync()
    x = torch.ones(2).to("tpu")
    y = torch.ones(2).to("tpu")
    results = [x + 1, y * 2]
    results.append(results[0] + y)
    records = recorder().state.records()
    slots = Slots(records)
    live = [record.out_slots[0] for record in records]
    graph = lineage(records, slots, live, [Check("message", "IndexError", "op", None, 0)])
    groups = [graph.groups[i] for i in graph.of]
    assert groups == [ResultGroup((0,), (0,)), ResultGroup((), (1,)), ResultGroup((0,), (0, 1))]
    lazytpu.sync()


def test_many_groups_are_merged() -> None:
    lazytpu.sync()
    many = [torch.ones(2).to("tpu") for _ in range(2 * FINE)]
    results = [x + 1 for x in many]
    records = recorder().state.records()
    live = [record.out_slots[0] for record in records]
    graph = lineage(records, Slots(records), live, [])
    assert len(results) == len(graph.of) and graph.groups == (ResultGroup((), tuple(range(2 * FINE))),)
    lazytpu.sync()


def test_errors_propagate_from_inputs_and_checks_to_results() -> None:
    early, late = DeviceError(IndexError("early"), 1), DeviceError(RuntimeError("late"), 2)
    operand, result, independent = (
        RunOutcome(ResultGroup((), ())),
        RunOutcome(ResultGroup((3,), (0,))),
        RunOutcome(ResultGroup((), ())),
    )
    note_guarded({0: early}, [operand], [(0, (0,))])
    note({3: late}, [result, independent], [operand])
    assert operand.errors == (early,)
    assert result.errors == (early, late) and independent.errors == ()
    error = to_raise(result.errors)
    assert isinstance(error, IndexError) and "late" in error.__notes__[0]
    assert to_raise(result.errors) is None
