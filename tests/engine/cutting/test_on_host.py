"""Short traces run on the host with the bits of their programs, until a program would have cost less."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lazytpu
from lazytpu import wiring
from lazytpu.engine.cutting import on_host
from lazytpu.engine.errors.unexpected import UNEXPECTED

NUMBERS = torch.tensor([1.5, -0.0, float("nan"), float("inf"), 3e-3, -7.25])
COUNTS = torch.arange(6)


@pytest.fixture(autouse=True)
def beside_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limit as after a step."""
    monkeypatch.setattr(on_host, "BESIDE", 0)


def counted(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int, int]:
    """Read the result of `run`; return it, the number of cuts run on the host and the number of programs compiled."""
    lazytpu.sync()
    before = lazytpu.metrics()
    got = run().cpu()
    after = lazytpu.metrics()
    return got, after["on_host"] - before["on_host"], after["compiles"] - before["compiles"]


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit(), expected.signbit())


def add_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1::2] += 2
    return y


def write_transposed(x: torch.Tensor) -> torch.Tensor:
    y = x.reshape(2, 3).clone()
    y.t().mul_(3)
    return y.t()


RUNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "comparison": lambda x: x.ne(-7.25),
    "finite": lambda x: torch.isinf(x) | torch.isnan(x),
    "arithmetic": lambda x: (x + 0.1) - x,
    "quotient": lambda x: x / 3,
    "alias": lambda x: x + x,
    "count": lambda x: (x > 0).sum() / 2,
    "decision": lambda x: (x > 0).to(torch.bool).all(),
    "double": lambda x: x.to(torch.float64) / 3,
    "list": lambda x: torch.cat([x, x[2:]]),
    "broadcast": lambda x: torch.where(x.reshape(2, 3) > x[:3], x.reshape(2, 3), x[1]),
    "view": add_through_a_view,
    "transposed": write_transposed,
    "bits": lambda x: ~(x > 0) ^ (x < 3) & (x == x),
    "positions": lambda x: ((x > 0).cumsum(0) - 1).masked_fill(x <= 0, 1).clamp(max=3),
    "ranges": lambda x: torch.arange(len(x), device=x.device) + (x > 0),
    "membership": lambda x: torch.isin((x > 0).to(torch.int64), torch.tensor([1], device=x.device)),
    "fills": lambda x: torch.full_like(x, 2).masked_fill(x > 0, 3) + x.new_empty(6).copy_(x),
    "most": lambda x: torch.maximum((x > 0) + 1, (x < 0) + 1).max(),
}


def test_a_trace_keeps_memory_that_nobody_wrote() -> None:
    empty = torch.empty(2, 3, device="tpu")
    joined, on_host, compiles = counted(lambda: torch.cat([empty, empty]))
    assert (on_host, compiles) == (1, 0)
    same_bits(joined, torch.cat([empty.cpu(), empty.cpu()]))


@pytest.mark.parametrize("x", [NUMBERS, COUNTS], ids=["floats", "integers"])
@pytest.mark.parametrize("name", RUNS)
def test_host_run_has_the_bits_of_cpu_and_program(name: str, x: torch.Tensor) -> None:
    run = RUNS[name]
    got, ran, compiled = counted(lambda: run(x.to("tpu")))
    assert (ran, compiled) == (1, 0)
    same_bits(got, run(x))
    with lazytpu.options(background_compile=0):
        program, ran, _ = counted(lambda: run(x.to("tpu")))
    assert ran == 0
    same_bits(got, program)


NARROW = ("comparison", "arithmetic", "quotient", "alias", "list", "view", "transposed", "fills")


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.float16, torch.bfloat16])
def test_host_run_of_a_narrow_dtype_has_the_bits_of_cpu_and_program(name: str, dtype: torch.dtype) -> None:
    x = NUMBERS.nan_to_num(nan=2.5, posinf=9.0).to(dtype) if dtype.is_floating_point else COUNTS.to(dtype)
    test_host_run_has_the_bits_of_cpu_and_program(name, x)


def test_host_run_of_complex_numbers_has_the_bits_of_cpu_and_program() -> None:
    x = torch.complex(NUMBERS, NUMBERS.flip(0))
    for run in (lambda x: torch.cat([x, x[2:]]), lambda x: x.eq(1.5), lambda x: x[1:].clone()):
        got, ran, compiled = counted(lambda run=run: run(x.to("tpu")))
        assert (ran, compiled) == (1, 0)
        expected = run(x)
        with lazytpu.options(background_compile=0):
            program, ran, _ = counted(lambda run=run: run(x.to("tpu")))
        assert ran == 0
        for value in (expected, program):
            assert got.dtype == value.dtype
            same_bits(*(torch.view_as_real(t) if t.is_complex() else t for t in (got, value)))
    # A product rounds several times, and torch multiplies an addend by one, which turns an infinity into NaN.
    for run in (lambda x: x * x, lambda x: x + x):
        assert counted(lambda run=run: run(x.to("tpu")))[1] == 0


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_values_are_computed_on_the_host(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    for run in (lambda x: x + 1, lambda x: torch.cat([x, x]), lambda x: (x == 0).any(), lambda x: (x > 0).sum()):
        got, ran, compiled = counted(lambda run=run: run(x.to("tpu")))
        assert (ran, compiled) == (1, 0)
        same_bits(got, run(x))


def test_varying_indices_and_offsets_compile_nothing() -> None:
    x = COUNTS.to("tpu")
    got, _, compiled = counted(lambda: (x > 2).nonzero())
    assert compiled == 0
    same_bits(got, (COUNTS > 2).nonzero())
    assert [counted(lambda i=i: x[i] * 2)[0].item() for i in range(5)] == [0, 2, 4, 6, 8]
    assert counted(lambda: x[5] * 2)[1:] == (1, 0)


def test_short_trace_of_another_size_runs_on_the_host() -> None:
    assert [counted(lambda n=n: torch.rand(n).to("tpu").softmax(0))[1:] for n in (5, 6, 7)] == [(0, 1), (1, 0), (1, 0)]


def test_constant_read_at_many_sizes_runs_on_the_host() -> None:
    """A decoder creates such a mask for each token and reads it."""
    pending = COUNTS.to("tpu") * 3
    for n in (5, 6, 7, 1):
        read, hosted, compiled = counted(lambda n=n: torch.ones(1, n, device="tpu").bool().sum())
        assert (read.item(), hosted, compiled) == (n, 1, 0)
    assert counted(lambda: torch.ones(1, 6, device="tpu").bool().sum())[1:] == (0, 0), (
        "a repeated read returns the known constant"
    )
    same_bits(pending.cpu(), COUNTS * 3)


def test_host_runs_begin_once_the_process_has_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(5).to("tpu")
    model = copy.deepcopy(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))))
    runs = wiring.start().cutter.chooser.on_host
    gc.collect()
    others = runs.parameters()  # which other tests of this process keep
    monkeypatch.setattr(on_host, "BESIDE", 4 * (others + 8))
    monkeypatch.setattr(runs, "largest", 0)
    assert counted(lambda: x + 1)[1] == 0
    model.to("tpu")
    assert counted(lambda: x - 1)[1] == 1


TINY = torch.tensor([1e-40, -1e-39, 1.2e-38, 0.0, 1.0, -0.0])


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x == 0,
        lambda x: x.bool(),
        lambda x: x.to(torch.float64),
        lambda x: x * 0.5,
        lambda x: torch.full_like(x, 1e-40).masked_fill(x > 1, -1e-40),
        lambda x: torch.cat([x, x[:2]]),
        lambda x: x[:1].clone().sum(),
        lambda x: x[-1:].clone().sum(),
        lambda x: (x * 1)[:1].clone().mean(),
    ],
)
def test_denormals_are_flushed_as_by_the_program(
    run: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    got, ran, _ = counted(lambda: run(TINY.to("tpu")))
    assert ran == 1
    assert TINY[0] * 1 != 0, "the script's thread must not flush denormals"
    with lazytpu.options(background_compile=0):
        same_bits(got, counted(lambda: run(TINY.to("tpu")))[0])


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.exp(),
        lambda x: x.sum(),
        lambda x: x.cumsum(0),
        lambda x: torch.maximum(x, x * 2),
        lambda x: x.add(x, alpha=0.1),
        lambda x: x * 3 + x,
        lambda x: x[:1].clone().expand(7).sum(),
        lambda x: (x[:1] > 0).clone().expand(40000).sum(),
    ],
)
def test_ops_with_other_rounding_on_the_host_have_programs(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _, ran, compiled = counted(lambda: run(torch.rand(5).to("tpu")))
    assert (ran, compiled) == (0, 1)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: (x > 0.5).sum(dtype=torch.float32),
        lambda x: (x > 0.5).float().mean(),
        lambda x: x.to(torch.int32),
    ],
)
def test_ops_with_other_results_on_the_host_have_programs(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _, ran, compiled = counted(lambda: run(torch.tensor([0.1, 1e30, -3.0]).to("tpu")))
    assert (ran, compiled) == (0, 1)


def test_dispatch_modes_do_not_see_host_runs() -> None:
    seen = list[str]()

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.rand(7).to("tpu")
    lazytpu.sync()
    with Seeing():
        y = x * 1.75
        before = lazytpu.metrics()["on_host"]
        lazytpu.mark_step()
        assert lazytpu.metrics()["on_host"] == before + 1
    assert seen == ["aten.mul.Tensor"]
    same_bits(y.cpu(), x.cpu() * 1.75)


def append(grown: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.cat([grown.to("tpu"), row.to("tpu")])


def test_growing_results_compile_nothing() -> None:
    rows = torch.rand(3, 2)
    grown = expected = rows
    for _ in range(6):
        grown, ran, compiled = counted(partial(append, grown, rows))
        expected = torch.cat([expected, rows])
        assert (ran, compiled) == (1, 0)
    same_bits(grown, expected)


def test_frequent_trace_gets_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(13)
    monkeypatch.setattr(on_host, "RUNS", 1)
    first = counted(lambda: x.to("tpu") * 1.25)
    second = counted(lambda: x.to("tpu") * 1.25)
    third = counted(lambda: x.to("tpu") * 1.25)
    assert (first[1:], second[1:], third[1:]) == ((1, 0), (0, 1), (0, 0))
    same_bits(first[0], second[0])
    same_bits(first[0], third[0])


def test_host_run_is_explained_and_can_be_disabled() -> None:
    x = torch.rand(15)
    with lazytpu.options(on_host=False):
        assert counted(lambda: x.to("tpu") * 1.25)[1:] == (0, 1)
    for _ in range(2):
        assert counted(lambda: x.to("tpu") / 1.25)[1:] == (1, 0)
    *_, listed = lazytpu.explain().on_host
    assert (listed.varies, listed.traces, listed.runs, listed.fewest) == (False, 1, 2, 1)
    assert "`div` at " in listed.begins
    assert "because: short, with the same bits" in str(listed)


@pytest.mark.parametrize("mode", ["lazy", "strict", "debug"])
def test_other_modes_always_have_programs(mode: str) -> None:
    with lazytpu.mode(mode):
        _, ran, _ = counted(lambda: torch.ones(3).to("tpu") * 5)
    assert ran == 0


def test_process_of_only_short_traces_uses_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "BESIDE", float("inf"))
    _, ran, compiled = counted(lambda: torch.ones(17).to("tpu") * 5)
    assert (ran, compiled) == (0, 1)


def test_failed_value_does_not_run_on_the_host() -> None:
    table, index = torch.rand(5, 3).to("tpu"), torch.tensor([1, 9]).to("tpu")
    rows = torch.nn.functional.embedding(index, table)
    lazytpu.mark_step()
    with pytest.raises(IndexError):
        (rows * 2).cpu()
    same_bits((table * 2).cpu(), table.cpu() * 2)


def test_result_follows_the_default_dtype() -> None:
    x = torch.arange(4)
    same_bits((x.to("tpu") / 3).cpu(), x / 3)
    torch.set_default_dtype(torch.float64)
    try:
        got, expected = (x.to("tpu") / 3).cpu(), x / 3
    finally:
        torch.set_default_dtype(torch.float32)
    same_bits(got, expected)


def masked(host: torch.Tensor, lengths: list[int], begin: int) -> None:
    """Write the causal blocks of requests of these lengths onto the diagonal of a mask."""
    host[:, : sum(lengths)].fill_(-1)
    for length in lengths:
        block = host[begin : begin + length, begin : begin + length]
        block.fill_(-9)
        block.triu_(1)
        begin += length


def test_varying_large_masks_are_written_on_the_host() -> None:
    """Four masks get programs; no further program is compiled, whatever the lengths. Three rows share a program of all
    lengths by then, and others run on the host."""
    device, host = torch.zeros(600, 600).to("tpu"), torch.zeros(600, 600)
    kinds = [[3, 5], [4, 4, 2], [7, 1], [2, 9, 4], [6, 3, 8], [1, 1, 1, 1], [11], [5, 2]]
    ran = list[tuple[int, int]]()
    for kind in kinds:
        masked(host, kind, 0)

        def run(kind: list[int] = kind) -> torch.Tensor:
            masked(device, kind, 0)
            return device

        got, on, compiled = counted(run)
        ran.append((on, compiled))
        same_bits(got, host)
    assert ran[:4] == [(0, 1)] * 4
    assert ran[4:] == [(0, 0), *[(1, 0)] * 3]


@pytest.mark.unexpected
@pytest.mark.parametrize("error", [KeyError("a bug"), RuntimeError("torch refuses")])
def test_trace_that_fails_on_the_host_has_its_program_and_a_bug_is_counted(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*given: Any) -> Any:
        raise error

    UNEXPECTED.reset()
    monkeypatch.setattr(on_host.OnHost, "_compute", raises)
    bugs = [error] if isinstance(error, KeyError) else []
    x = torch.rand(19 + len(bugs))
    got, ran, _ = counted(lambda: x.to("tpu") * 1.25)
    same_bits(got, x * 1.25)
    assert ran == 0
    assert lazytpu.metrics()["sharing_errors"] == len(bugs)
    assert [text.partition(":")[0] for text in UNEXPECTED.tracebacks] == ["while computing on the host" for _ in bugs]
