"""Global switches of torch: each is part of the key where it affects an op's result, and is read at every call."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lazytpu
from lazytpu.frontend.recording.ambient import SWITCHES as KEYED
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.settings import DEFAULT_DTYPE, DETERMINISM, PRECISION
from tests import zygote
from tests.frontend.recording.switched_programs import (
    ALL,
    SWITCHES,
    Statement,
    Step,
    backends,
    differences,
    program,
    reset,
    run,
)

MODES = ("fused", "lazy", "strict")
COUNT = int(os.environ.get("RANDOM_SWITCHES", "4"))


@pytest.fixture(autouse=True)
def switches_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # torch's own test modules, which other tests import, forbid setting the flags of torch.backends.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    lazytpu.mark_step()
    yield
    reset()
    lazytpu.mark_step()


# Ops that each switch affects, on leaves 1 and 5, which are integers, or 0 and 2 (float32).
NUMBERS = ("arange", "full", "full of complex", "where of numbers")
DECIDED: dict[str, Sequence[str]] = {
    "default dtype": (*NUMBERS, "exp", "mul by a float", "equal past a float's bits", "foreach"),
    "deterministic algorithms": ("empty", "resize_", "put", "put_"),
    "fill uninitialized memory": ("empty_like", "empty of ints"),
    "grad mode": ("mul by a float", "ones"),
}
WHOLE = "RANDOM_SWITCHES" in os.environ  # all values of all switches, with all ops


def _flipping(name: str) -> list[Step]:
    """Return ops before the switch is set, under other values, and after it is restored."""
    first, *remaining = SWITCHES[name][1]
    ops: list[Step] = []
    for op in ALL if WHOLE else DECIDED.get(name, ("matmul",)):
        ops += [Statement(op, None, 1, 5), Statement(op, None, 0, 2)]
    steps: list[Step] = [] if name != "fill uninitialized memory" else [("deterministic algorithms", "warn")]
    steps += [*ops, None]
    for value in [*(remaining if WHOLE else remaining[:1]), first]:
        steps += [(name, value), *ops, None]
    return steps


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SWITCHES)
def test_ops_follow_a_switch_that_is_set_after_they_were_recorded(name: str, mode: str) -> None:
    steps = _flipping(name)
    with lazytpu.mode(mode):
        assert not differences(steps, run(steps, "tpu"), run(steps, "cpu"))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_programs(seed: int) -> None:
    steps = program(seed)
    with lazytpu.mode(MODES[seed % 3]):
        assert not differences(steps, run(steps, "tpu"), run(steps, "cpu"))


def _traces(work: Callable[[], Any], name: str) -> list[Any]:
    """Return the states at which recording ends, under each value of a switch and again under the first."""
    set_, values = SWITCHES[name]
    states = []
    for value in [*values, values[0]]:
        set_(value)
        result = work()
        states.append(recorder().state)
        lazytpu.mark_step()
        del result
    return states


def test_an_op_independent_of_a_switch_is_recorded_once() -> None:
    x = torch.ones(3, 3, device="tpu", dtype=torch.bfloat16)
    lazytpu.mark_step()

    def work() -> Tensor:
        return ((x @ x) * 2.0 + 1.0).softmax(0).sum(dtype=torch.float32)

    for name in SWITCHES:
        if name != "fill uninitialized memory":
            states = _traces(work, name)
            assert all(state is states[0] for state in states), name
    assert not any(record.settings for record in states[0].records())


@pytest.mark.parametrize(
    ("name", "setting", "work"),
    [
        ("default dtype", DEFAULT_DTYPE, lambda x: x.int() * 0.5),
        # its dtype is fixed, but not the compared numbers' dtype
        ("default dtype", DEFAULT_DTYPE, lambda x: x.int() == 0.5),
        ("default dtype", DEFAULT_DTYPE, lambda x: torch.zeros(3, device="tpu")),
        ("float32 matmul precision", PRECISION, lambda x: x @ x),
        ("torch.backends.fp32_precision", PRECISION, lambda x: torch.nn.functional.conv1d(x[None], x[..., None])),
    ],
)
def test_a_dependent_op_stores_the_setting(name: str, setting: str, work: Callable[[Tensor], Any]) -> None:
    x = torch.ones(3, 3, device="tpu")
    lazytpu.mark_step()
    states = _traces(lambda: work(x), name)
    assert states[0] is states[-1] and states[0] is not states[1]
    settings = [dict(state.records()[-1].settings)[setting] for state in states]
    assert settings[0] == settings[-1] != settings[1]
    assert {switch.name for switch in KEYED} == {DEFAULT_DTYPE, PRECISION, DETERMINISM}


def test_a_program_is_compiled_for_the_recorded_settings() -> None:
    x = torch.tensor([16777217, 3], device="tpu")
    lazytpu.mark_step()
    results = [x * 0.1, x == 16777216.0, torch.ldexp(x, x % 4)]
    torch.set_default_dtype(torch.float64)
    results += [x * 0.1, x == 16777216.0, torch.ldexp(x, x % 4)]
    torch.set_default_dtype(torch.bfloat16)
    results = [r.cpu() for r in results]
    assert [r.dtype for r in results] == [torch.float32, torch.bool, torch.float32] + [
        torch.float64,
        torch.bool,
        torch.float64,
    ]
    assert (results[1].tolist(), results[4].tolist()) == ([True, False], [False, False])
    assert results[3].tolist() == [1677721.7000000002, 0.30000000000000004]


def test_an_unpooling_recorded_before_determinism_is_computed() -> None:
    x, places = torch.ones(1, 1, 2, device="tpu"), torch.tensor([[[0, 3]]], device="tpu")
    result = torch.nn.functional.max_unpool1d(x, places, [2])
    torch.use_deterministic_algorithms(True)
    assert result.tolist() == [[[1.0, 0.0, 0.0, 1.0]]]
    with pytest.raises(RuntimeError, match="max_unpooling2d_forward_out does not have a deterministic implementation"):
        torch.nn.functional.max_unpool1d(x, places, [2])


def test_nondeterministic_ops_are_rejected_on_a_hit() -> None:
    place, value = torch.tensor([1], device="tpu"), torch.ones(1, device="tpu")
    lazytpu.mark_step()

    def put() -> list[float]:
        x = torch.zeros(3, device="tpu")
        x.put_(place, value)
        return x.tolist()

    assert put() == put() == [0.0, 1.0, 0.0]
    torch.use_deterministic_algorithms(True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
            put()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        assert put() == [0.0, 1.0, 0.0]
    torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert put() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.int64, torch.uint64, torch.bool])
def test_memory_is_filled_as_on_the_cpu(dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)

    def filled(device: str) -> list[Tensor]:
        x = torch.ones(2, dtype=dtype, device=device)
        return [
            torch.empty(3, dtype=dtype, device=device),
            torch.empty_strided((2, 2), (1, 2), dtype=dtype, device=device),
            torch.empty_like(x),
            x.clone().resize_(4),
            x.clone()[1:].resize_(3),
        ]

    for actual, expected in zip(filled("tpu"), filled("cpu"), strict=True):
        same = partial(torch.allclose, equal_nan=True) if expected.dtype.is_floating_point else torch.equal
        assert same(actual.cpu(), expected)


def test_a_setting_of_a_single_backend_does_not_change_products() -> None:
    """torch.get_float32_matmul_precision() raises then."""
    x = torch.ones(4, 4, device="tpu")
    backends.mkldnn.matmul.fp32_precision = "bf16"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    y = x @ x
    assert dict(recorder().state.records()[-1].settings) == {PRECISION: "highest"}
    backends.fp32_precision = "tf32"
    z = x @ x
    assert dict(recorder().state.records()[-1].settings) == {PRECISION: "high"}
    assert torch.equal(y.cpu(), z.cpu())


def test_the_lower_of_two_precisions_counts() -> None:
    x = torch.ones(4, 4, device="tpu")
    words = {}
    for word in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(word)
        for generic in ("none", "ieee", "tf32", "bf16"):
            backends.fp32_precision = generic
            _ = x @ x
            words[word, generic] = dict(recorder().state.records()[-1].settings)[PRECISION]
    assert [words["highest", g] for g in ("none", "ieee", "tf32", "bf16")] == ["highest", "highest", "high", "medium"]
    assert [words["high", g] for g in ("none", "ieee", "tf32", "bf16")] == ["high", "high", "high", "medium"]
    assert {words["medium", g] for g in ("none", "ieee", "tf32", "bf16")} == {"medium"}


def test_numbers_that_vary_are_generalized_for_each_default_dtype() -> None:
    x = torch.arange(1, 4, device="tpu")
    lazytpu.mark_step()
    dtypes = []
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for exponent in (0.5, 1.5, 2.5):
            dtypes.append((x**exponent).cpu())
            torch.testing.assert_close(dtypes[-1], torch.arange(1, 4) ** exponent)
    assert [r.dtype for r in dtypes] == [torch.float32] * 3 + [torch.float64] * 3 + [torch.float32] * 3


def test_other_global_state_is_read_at_every_call() -> None:
    x = torch.ones(3, 3, device="tpu", requires_grad=True)

    def both() -> tuple[Tensor, Tensor]:
        return x @ x, torch.ones(2).mul(2.0)

    def state() -> tuple[Any, ...]:
        product, fresh = both()
        lazytpu.mark_step()
        return product.dtype, product.requires_grad, product.is_inference(), fresh.device.type

    plain = (torch.float32, True, False, "cpu")
    assert state() == plain
    with torch.autocast("tpu", torch.bfloat16):
        assert state() == (torch.bfloat16, True, False, "cpu")
    with torch.no_grad():
        assert state() == (torch.float32, False, False, "cpu")
    with torch.inference_mode():
        assert state() == (torch.float32, False, True, "cpu")
    with torch.device("tpu"):
        assert state() == (torch.float32, True, False, "tpu")
    assert torch.vmap(lambda row: row @ x)(x).shape == (3, 3)
    assert state() == plain


SECOND = """
import torch, lazytpu
torch.set_default_dtype(dtype)
x = torch.tensor([16777217], device="tpu")
lazytpu.mark_step()
y = x == 16777216.0
z = x * 0.1
lazytpu.mark_step()
print(y.item(), z.dtype, z.item())
"""


def test_a_second_process_with_another_default_dtype() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(SECOND, {"dtype": torch.float32})
    script = f"import torch; dtype = torch.float64\n{SECOND}"
    process = zygote.run(["-c", script])
    assert process.returncode == 0, process.stderr
    assert output.getvalue().strip() == "True torch.float32 1677721.625"
    assert process.stdout.strip() == "False torch.float64 1677721.7000000002"
