"""Why a program was made: every reason code, and every hint at what lies behind it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import lazytpu
from lazytpu.engine.recompiles.explanation import Made
from lazytpu.engine.recompiles.history import Recompiles
from lazytpu.engine.recompiles.reasons import CODES
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.recorder import Trace

pytestmark = pytest.mark.usefixtures("fresh_traces")


def on_tpu(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype).to("tpu")


def made(step: object, *args: object) -> Made:
    """What the last program made by `step(*args)` and a cut is; a step that made none is an error."""
    before = len(lazytpu.explain()) + lazytpu.explain().forgotten
    kept = step(*args)  # type: ignore[operator]
    lazytpu.mark_step()
    del kept
    explained = lazytpu.explain()
    assert len(explained) + explained.forgotten == before + 1, "one program"
    return explained[-1]


@pytest.mark.usefixtures("empty_cache")
def test_the_first_of_its_kind_and_the_last_batch() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).relu()

    weight = on_tpu(10, 784)
    first = made(step, on_tpu(32, 784))
    assert (first.code, first.nearest, first.source) == ("first", None, "compiled")
    assert first.milliseconds > 0
    assert first.name == "step"
    last = made(step, on_tpu(17, 784))
    assert (last.code, last.hint, last.nearest) == ("shape", "last-batch", first.number)
    assert re.fullmatch(
        r"argument \d \(`\w+`\) of `\w+` at .*test_explain.py:\d+ was f32\[32,784\], is f32\[17,784\] \(last batch\); "
        rf"nearest program #{first.number} differs only there; fix: DataLoader\(\.\.\., drop_last=True\).*",
        last.text,
    )
    assert "test_explain.py:" in last.line
    gone, come = last.diff[:2]
    assert gone.startswith("- ") and "f32[32,784]" in gone
    assert come.startswith("+ ") and "f32[17,784]" in come


def test_a_size_that_grows_is_told_from_one_that_varies() -> None:
    def step(cache: torch.Tensor) -> torch.Tensor:
        return (cache * 2).sum(1)

    found = [made(step, on_tpu(2, n, 3)) for n in (4, 9, 5, 6, 7, 8)]
    assert [m.hint for m in found] == ["", "varying-size", "varying-size", "varying-size", "growing", "growing"]
    assert "dimension 1 grows by 1" in found[-1].text
    assert [m.nearest for m in found[1:]] == [m.number for m in found[:-1]]


def test_a_dtype_and_the_type_of_a_number() -> None:
    def step(x: torch.Tensor, number: float) -> torch.Tensor:
        return (x * number).exp()

    made(step, on_tpu(5), 2.0)
    other = made(step, on_tpu(5), 2)
    assert (other.code, other.hint) == ("dtype", "number-type")
    assert "was <float>, is <int>" in other.text
    half = made(step, on_tpu(5, dtype=torch.float16), 2.0)
    assert (half.code, half.hint) == ("dtype", "")
    assert "was f32[5], is f16[5]" in half.text


def test_strides_and_an_index_that_changes() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    x = on_tpu(6, 4)
    made(step, x[1])
    index = made(step, x[2])
    assert (index.code, index.hint) == ("layout", "changing-index")
    assert "index with a tensor" in index.fix

    def square(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1

    y = on_tpu(4, 4)
    made(square, y)
    strides = made(square, y.t())
    assert (strides.code, strides.hint) == ("layout", "strides")
    assert "strides [1, 4]" in strides.text and ".contiguous()" in strides.fix


def test_a_static_argument() -> None:
    def step(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cumsum(x, dim)

    made(step, on_tpu(3, 3), 0)
    dim = made(step, on_tpu(3, 3), 1)
    assert (dim.code, dim.hint) == ("static-scalar", "changing-number")
    assert "(`dim`)" in dim.text and "was 0, is 1" in dim.text

    def mean(x: torch.Tensor, keep: bool) -> torch.Tensor:
        return x.sum(0, keepdim=keep)

    made(mean, on_tpu(3, 3), False)
    flag = made(mean, on_tpu(3, 3), True)
    assert (flag.code, flag.hint) == ("static-scalar", "")
    assert "was False, is True" in flag.text


def test_precision() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = on_tpu(3, 3)
    made(step, x)
    try:
        torch.set_float32_matmul_precision("medium")
        found = made(step, x)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found.code == "precision"
    assert "was 'highest', is 'medium'" in found.text


def test_another_path_and_an_op_that_is_new() -> None:
    def step(x: torch.Tensor, branch: int) -> torch.Tensor:
        x = x.sin().cos().sin()
        if branch == 1:
            x = x.cos()
        elif branch == 2:
            x = torch.special.bessel_j0(x)
        return x.sum() + 1

    plain = made(step, on_tpu(3), 0)
    path = made(step, on_tpu(3), 1)
    assert (path.code, path.hint, path.nearest) == ("new-trace-path", "branch", plain.number)
    assert f"`cos` at {path.line} follows, where program #{plain.number} has `sum`" in path.text
    new = made(step, on_tpu(3), 2)
    assert (new.code, new.hint) == ("new-op", "branch")
    assert f"`special_bessel_j0` at {new.line} is an op that no earlier program has" in new.text


def test_a_trace_that_ends_elsewhere() -> None:
    def step(x: torch.Tensor, read: bool) -> torch.Tensor:
        x = x.sin().cos().sin()
        if read:
            lazytpu.mark_step()
            return x
        return x.exp().exp()

    whole = made(step, on_tpu(3), False)
    cut = made(step, on_tpu(3), True)
    assert (cut.code, cut.hint) == ("new-trace-path", "earlier-cut")
    assert f"where program #{whole.number} goes on with `exp`" in cut.text

    def other(x: torch.Tensor, more: bool) -> torch.Tensor:
        x = x.sin().cos()
        return x.sin() if more else x

    short = made(other, on_tpu(3, 1), False)
    longer = made(other, on_tpu(3, 1), True)
    assert (longer.code, longer.hint) == ("new-trace-path", "later-cut")
    assert f"goes on with `sin` at {longer.line}, where program #{short.number} ends" in longer.text


def test_a_tensor_that_is_kept_is_named_with_its_line() -> None:
    def step(x: torch.Tensor, keep: bool) -> tuple[torch.Tensor, ...]:
        middle = x.exp()
        end = middle.sum()
        return (end, middle) if keep else (end,)

    plain = made(step, on_tpu(9), False)
    kept = made(step, on_tpu(9), True)
    assert (kept.code, kept.hint, kept.nearest) == ("live-outputs", "kept-alive", plain.number)
    line = kept.line.rpartition(":")[2]
    assert int(line) == step.__code__.co_firstlineno + 1
    assert kept.text.startswith(f"f32[9], the result of `exp` at {kept.line}, is still alive where the trace ends")


def test_gradients_that_are_kept_across_the_step() -> None:
    model = torch.nn.Linear(3, 2).to("tpu")

    def step(x: torch.Tensor, drop: bool) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        if drop:
            model.zero_grad()
        return loss

    made(step, on_tpu(4, 3), True)
    found = made(step, on_tpu(4, 3), False)
    assert (found.code, found.hint) == ("live-outputs", "gradients")
    assert "weight.grad" in found.text or "bias.grad" in found.text
    assert "zero_grad() right after optimizer.step()" in found.fix
    model.zero_grad()


def test_memory_that_is_still_needed() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x

    x = on_tpu(16)
    taking = made(step, x)
    held = x.clone()
    found = made(step, x)
    assert (found.code, found.nearest) == ("donation", taking.number)
    assert "is still needed after the trace" in found.text and "clone()" in found.fix
    assert held.tolist() == [3.0] * 16 and x.tolist() == [7.0] * 16


@pytest.fixture
def explained() -> Iterator[Callable[..., Made]]:
    """What a history of its own says of the trace that an expression records; nothing is compiled."""
    history, states = Recompiles(lambda epoch: {}), []

    def explained(expression: Callable[[], object], mode: str = "fused") -> Made:
        lazytpu.mark_step()
        kept = expression()
        state = recorder().state
        states.append(state)  # as the trie does, in which the next cut leaves it
        trace = Trace(state, 1, [], [], [], 0.0, mode)
        number = len(history.explanation())
        with history.making(number, "step", trace, state.records(), (state.slots - 1,), ()) as making:
            making.made("compiled", frozenset())
        del kept
        return history.explanation()[-1]

    yield explained
    lazytpu.mark_step()


def test_settings_modes_and_dropped_programs(explained: Callable[..., Made]) -> None:
    x = on_tpu(4, 3)

    def step() -> torch.Tensor:
        return x.tanh().sinh().sum()

    assert explained(step).code == "first"
    dropped = explained(step)
    assert (dropped.code, dropped.nearest) == ("dropped", 0)
    with lazytpu.options(bounds_check=False):
        found = explained(step)
    assert found.code == "options"
    assert "`bounds_check True` is now `bounds_check False`" in found.text
    found = explained(step, "lazy")
    assert found.code == "mode"
    assert "the mode was fused, is lazy" in found.text
    assert found.recompile == 0, "a setting that is changed does not count"


def test_a_mode_that_cuts_differently(explained: Callable[..., Made]) -> None:
    x = on_tpu(4, 3)

    def step(whole: bool) -> torch.Tensor:
        y = x
        for _ in range(9 if whole else 1):
            y = y.sinh()
        return y.cos() if whole else y

    explained(lambda: step(True))
    found = explained(lambda: step(False), "lazy")
    assert found.code == "mode"
    assert "were parts of programs of mode fused; the mode is now lazy" in found.text


def test_strict_mode_after_fused() -> None:
    x = on_tpu(4, 9)

    def step() -> torch.Tensor:
        return x.tanh().asin().sum()

    made(step)
    before = len(lazytpu.explain())
    with lazytpu.mode("strict"):
        step()
    found = list(lazytpu.explain())[before:]
    assert [m.code for m in found] == ["mode"] * 3
    assert all("were parts of programs of mode fused; the mode is now strict" in m.text for m in found)
    assert {m.recompile for m in found} == {0}


def test_what_only_the_first_time_makes() -> None:
    masks: dict[str, torch.Tensor] = {}

    def step(x: torch.Tensor) -> torch.Tensor:
        if "mask" not in masks:
            masks["mask"] = torch.full((4, 7), 0.5, device="tpu")
        return (x.tanh() * masks["mask"]).sum()

    made(step, on_tpu(4, 7))
    found = made(step, on_tpu(4, 7))
    assert (found.hint, found.recompile) == ("first-time", 0)


def test_train_and_eval_and_a_step_without_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Tanh()).to(
        "tpu"
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).exp().sum()

    made(step, on_tpu(4, 3))
    model.eval()
    found = made(step, on_tpu(4, 3))
    assert (found.code, found.hint) == ("new-trace-path", "train-eval")

    def learn(x: torch.Tensor, train: bool) -> torch.Tensor:
        loss = model(x).sin().sum()
        if train:
            loss.backward()
            model.zero_grad()
        return loss

    made(learn, on_tpu(5, 3), True)
    found = made(learn, on_tpu(5, 3), False)
    assert (found.code, found.hint) == ("new-trace-path", "evaluation")
    assert found.recompile == 0, "each of the two is compiled once"


def test_the_first_step_of_an_optimizer() -> None:
    weight = torch.nn.Parameter(on_tpu(4, 3))
    optimizer = torch.optim.Adam([weight])

    def step() -> torch.Tensor:
        loss = (weight * 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    made(step)
    second = made(step)
    assert second.hint == "optimizer-states"
    assert second.fix == "none needed: happens once"
    assert second.recompile == 0, "warming up does not count"
    before = len(lazytpu.explain())
    step()
    lazytpu.mark_step()
    assert len(lazytpu.explain()) == before


def test_an_optimizer_that_warms_up() -> None:
    weight = torch.nn.Parameter(on_tpu(4, 5))
    optimizer = torch.optim.RAdam([weight], foreach=False)

    def step() -> None:
        (weight * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        lazytpu.mark_step()

    hints = []
    for _ in range(8):
        before = len(lazytpu.explain())
        step()
        hints.append(lazytpu.explain()[-1].hint if len(lazytpu.explain()) > before else None)
    assert hints == ["", "optimizer-states", None, None, None, "optimizer-branch", None, None]


def test_inputs_that_differ_in_the_same_size() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.erf().mul(2).sub(y).sum()

    made(step, on_tpu(32, 3), on_tpu(32, 3))
    both = made(step, on_tpu(8, 3), on_tpu(8, 3))
    assert (both.code, both.hint) == ("shape", "last-batch")
    assert f"nearest program #{both.nearest} differs only in that size" in both.text
    other = made(step, on_tpu(16, 3), on_tpu(1, 3))
    assert (other.code, f"nearest program is #{other.nearest}" in other.text) == ("shape", True)


def test_the_same_ops_as_part_of_another_trace() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.erfc().mul(3).cos()

    whole = made(step, on_tpu(6, 3))
    x = on_tpu(6, 3)
    unread = x.sin()
    step(x).cpu()  # takes what it needs out of the trace
    found = lazytpu.explain()[-1]
    lazytpu.mark_step()
    assert unread.tolist() == x.cpu().sin().tolist()
    assert (found.hint, found.nearest) == ("same-program", whole.number)
    assert found.source in ("shared", "index")


SCRIPT = """
import torch
import lazytpu
x = torch.ones(5).to("tpu")
y = x.exp().sin()
lazytpu.mark_step()
explained = lazytpu.explain()
print(explained[-1].source, explained[-1].code, explained.compiles, lazytpu.metrics()["compiles"])
"""


def test_what_was_found_in_the_cache_is_told_apart(tmp_path: Path) -> None:
    def run(**settings: str) -> str:
        environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path / "cache"), **settings}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300).stdout

    assert run().split() == ["compiled", "first", "1", "1"]
    assert run().split() == ["index", "first", "0", "0"]
    assert run(LAZYTPU_DUMP=str(tmp_path / "dump")).split() == ["disk", "first", "0", "0"]  # does without the index


@pytest.mark.usefixtures("empty_cache")
def test_a_program_shared_with_another_line_is_no_compile() -> None:
    def step(x: torch.Tensor, number: float) -> torch.Tensor:
        return x.asinh() * number

    assert made(step, on_tpu(7), 3.0).source == "compiled"
    before = lazytpu.metrics()["compiles"]
    found = made(step, on_tpu(7), 3)  # an int takes part in promotion differently, and gives the same code here
    assert (found.code, found.source) == ("dtype", "shared")
    assert lazytpu.metrics()["compiles"] == before


def test_what_is_returned_counts_and_prints() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().cosh()

    made(step, on_tpu(3))
    made(step, on_tpu(4))
    explained = lazytpu.explain()
    assert sum(explained.counts.values()) == len(explained) == len(explained.programs)
    assert set(explained.counts) <= set(CODES)
    assert explained.compiles <= len(explained)
    text = str(explained)
    assert text == repr(explained)
    assert explained[-1].text in text and all(line in text for line in explained[-1].diff)


def test_debug_tells_as_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().tan()

    with lazytpu.options(debug=1):
        made(step, on_tpu(3, 2))
        found = made(step, on_tpu(4, 2))
    printed = " ".join(capsys.readouterr().err.split())
    assert "is made because: no earlier program is like it" in printed
    assert " ".join(found.text.split()) in printed
