"""Explanations of new programs: the reason code of each kind of change in a script."""

from __future__ import annotations

import re

import pytest
import torch

import lazytpu
from tests.engine.recompiles.explained import explanation_of, on_tpu

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.mark.usefixtures("empty_cache")
def test_first_program_and_last_batch() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).relu()

    weight = on_tpu(10, 784)
    first = explanation_of(step, on_tpu(32, 784))
    assert (first.code, first.nearest, first.source) == ("first", None, "compiled")
    assert first.milliseconds > 0
    assert first.name == "step"
    last = explanation_of(step, on_tpu(17, 784))
    assert (last.code, last.hint, last.nearest) == ("shape", "last-batch", first.number)
    assert re.fullmatch(
        r"the tensor uploaded at .*explained.py:\d+, argument \d \(`\w+`\) of `\w+` at .*test_explanation.py:\d+, "
        r"was f32\[32,784\], is f32\[17,784\] "
        r"\(last batch\); "
        rf"nearest program #{first.number} differs only there; fix: DataLoader\(\.\.\., drop_last=True\).*",
        last.text,
    )
    assert "test_explanation.py:" in last.line
    gone, come = last.diff[:2]
    assert gone.startswith("- ") and "f32[32,784]" in gone
    assert come.startswith("+ ") and "f32[17,784]" in come


def test_growing_and_varying_sizes_have_different_hints() -> None:
    def step(cache: torch.Tensor) -> torch.Tensor:
        return (cache * 2).sum(1)

    explanations = [explanation_of(step, on_tpu(2, n, 3)) for n in (4, 9, 5, 6, 7, 8)]
    assert [m.hint for m in explanations] == ["", "varying-size", "varying-size", "varying-size", "growing", "growing"]
    assert "dimension 1 grows by 1" in explanations[-1].text
    assert [m.nearest for m in explanations[1:]] == [m.number for m in explanations[:-1]]


def test_changed_dtype_and_number_type() -> None:
    def step(x: torch.Tensor, number: float) -> torch.Tensor:
        return (x * number).exp()

    explanation_of(step, on_tpu(5), 2.0)
    integer = explanation_of(step, on_tpu(5), 2)
    assert (integer.code, integer.hint) == ("dtype", "number-type")
    assert "was <float>, is <int>" in integer.text
    half = explanation_of(step, on_tpu(5, dtype=torch.float16), 2.0)
    assert (half.code, half.hint) == ("dtype", "")
    assert "was f32[5], is f16[5]" in half.text


def test_changed_strides_and_changing_index() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    x = on_tpu(6, 4)
    explanation_of(step, x[1])
    general = explanation_of(step, x[2])
    assert general.hint == "general-index"
    explanation_of(step, x.flatten()[1:7])
    index = explanation_of(step, x.flatten()[2:8])
    assert (index.code, index.hint) == ("layout", "changing-index")
    assert "index with a tensor" in index.fix

    def square(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    y = on_tpu(4, 4)
    explanation_of(square, y)
    strides = explanation_of(square, y.t())
    assert (strides.code, strides.hint) == ("layout", "strides")
    assert "strides [1, 4]" in strides.text and ".contiguous()" in strides.fix


def test_changed_static_argument() -> None:
    def step(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cumsum(x, dim)

    explanation_of(step, on_tpu(3, 3), 0)
    dim = explanation_of(step, on_tpu(3, 3), 1)
    assert (dim.code, dim.hint) == ("static-scalar", "changing-number")
    assert "(`dim`)" in dim.text and "was 0, is 1" in dim.text

    def mean(x: torch.Tensor, keep: bool) -> torch.Tensor:
        return x.sum(0, keepdim=keep)

    explanation_of(mean, on_tpu(3, 3), False)
    flag = explanation_of(mean, on_tpu(3, 3), True)
    assert (flag.code, flag.hint) == ("static-scalar", "")
    assert "was False, is True" in flag.text


def test_changed_matmul_precision() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = on_tpu(3, 3)
    explanation_of(step, x)
    try:
        torch.set_float32_matmul_precision("medium")
        explanation = explanation_of(step, x)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert explanation.code == "precision"
    assert "was 'highest', is 'medium'" in explanation.text


def test_new_branch_and_new_op() -> None:
    def step(x: torch.Tensor, branch: int) -> torch.Tensor:
        x = x.sin().cos().sin()
        if branch == 1:
            x = x.cos()
        elif branch == 2:
            x = torch.special.bessel_j0(x)
        return x.sum() + 1

    plain = explanation_of(step, on_tpu(3), 0)
    path = explanation_of(step, on_tpu(3), 1)
    assert (path.code, path.hint, path.nearest) == ("new-trace-path", "branch", plain.number)
    assert f"`cos` at {path.line} follows, where program #{plain.number} has `sum`" in path.text
    new = explanation_of(step, on_tpu(3), 2)
    assert (new.code, new.hint) == ("new-op", "branch")
    assert f"`special_bessel_j0` at {new.line} is an op that no earlier program has" in new.text


def test_earlier_and_later_cut() -> None:
    def step(x: torch.Tensor, read: bool) -> torch.Tensor:
        x = x.sin().cos().sin()
        if read:
            lazytpu.mark_step()
            return x
        return x.exp().exp()

    uncut = explanation_of(step, on_tpu(3), False)
    cut = explanation_of(step, on_tpu(3), True)
    assert (cut.code, cut.hint) == ("new-trace-path", "earlier-cut")
    assert f"where program #{uncut.number} goes on with `exp`" in cut.text

    def extend(x: torch.Tensor, more: bool) -> torch.Tensor:
        x = x.sin().cos()
        return x.sin() if more else x

    short = explanation_of(extend, on_tpu(3, 1), False)
    longer = explanation_of(extend, on_tpu(3, 1), True)
    assert (longer.code, longer.hint) == ("new-trace-path", "later-cut")
    assert f"goes on with `sin` at {longer.line}, where program #{short.number} ends" in longer.text


def test_tensor_kept_alive_is_named_with_its_line() -> None:
    def step(x: torch.Tensor, keep: bool) -> tuple[torch.Tensor, ...]:
        middle = x.exp()
        end = middle.sum()
        return (end, middle) if keep else (end,)

    plain = explanation_of(step, on_tpu(9), False)
    kept = explanation_of(step, on_tpu(9), True)
    assert (kept.code, kept.hint, kept.nearest) == ("live-outputs", "kept-alive", plain.number)
    line = kept.line.rpartition(":")[2]
    assert int(line) == step.__code__.co_firstlineno + 1
    assert kept.text.startswith(f"f32[9], the result of `exp` at {kept.line}, is still alive where the trace ends")


def test_gradients_kept_across_steps() -> None:
    model = torch.nn.Linear(3, 2).to("tpu")

    def step(x: torch.Tensor, drop: bool) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        if drop:
            model.zero_grad()
        return loss

    explanation_of(step, on_tpu(4, 3), True)
    explanation = explanation_of(step, on_tpu(4, 3), False)
    assert (explanation.code, explanation.hint) == ("live-outputs", "gradients")
    assert "weight.grad" in explanation.text or "bias.grad" in explanation.text
    assert "zero_grad() right after optimizer.step()" in explanation.fix
    model.zero_grad()


def test_memory_still_needed_after_the_trace() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x

    x = on_tpu(16)
    donating = explanation_of(step, x)
    copy = x.clone()
    explanation = explanation_of(step, x)
    assert (explanation.code, explanation.nearest) == ("donation", donating.number)
    assert "is still needed after the trace" in explanation.text and "clone()" in explanation.fix
    assert copy.tolist() == [3.0] * 16 and x.tolist() == [7.0] * 16
