"""Explanations of new programs: settings, modes, hints at the cause, and their printed form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.engine.recompiles.explanation import Made
from lazytpu.engine.recompiles.history import Recompiles
from lazytpu.engine.recompiles.reasons import CODES, Reason
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.pending import Trace
from tests import zygote
from tests.engine.recompiles.explained import explanation_of, on_tpu

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture
def explained() -> Iterator[Callable[..., Made]]:
    """A function that explains the trace of an expression with a separate history, without compiling it."""
    history, states = Recompiles(lambda epoch: {}), []

    def explained(expression: Callable[[], object], mode: str = "fused", source: str = "compiled") -> Made:
        lazytpu.mark_step()
        kept = expression()
        state = recorder().state
        states.append(state)  # keep it alive, as the trie does
        trace = Trace(state, 1, [], [], [], 0.0, mode)
        number = len(history.explanation())
        with history.making(number, "step", trace, state.records(), (state.slots - 1,), ()) as making:
            making.made(source, frozenset())
        del kept
        return history.explanation()[-1]

    yield explained
    lazytpu.mark_step()


def test_refused_program_is_not_explained_as_dropped(explained: Callable[..., Made]) -> None:
    x = on_tpu(4, 3)
    for source, code in (("refused", "first"), ("compiled", "refused"), ("compiled", "dropped")):
        assert explained(lambda: x.tanh().sinh().sum(), source=source).code == code


def test_changed_settings_and_modes_and_dropped_programs(explained: Callable[..., Made]) -> None:
    x = on_tpu(4, 3)

    def step() -> torch.Tensor:
        return x.tanh().sinh().sum()

    assert explained(step).code == "first"
    dropped = explained(step)
    assert (dropped.code, dropped.nearest) == ("dropped", 0)
    with lazytpu.options(bounds_check=False):
        explanation = explained(step)
    assert explanation.code == "options"
    assert "`bounds_check True` is now `bounds_check False`" in explanation.text
    explanation = explained(step, "lazy")
    assert explanation.code == "mode"
    assert "the mode was fused, is lazy" in explanation.text
    assert explanation.recompile == 0, "a changed setting is no recompilation"


def test_mode_with_other_cuts(explained: Callable[..., Made]) -> None:
    x = on_tpu(4, 3)

    def step(uncut: bool) -> torch.Tensor:
        y = x
        for _ in range(9 if uncut else 1):
            y = y.sinh()
        return y.cos() if uncut else y

    explained(lambda: step(True))
    explanation = explained(lambda: step(False), "lazy")
    assert explanation.code == "mode"
    assert "were parts of programs of mode fused; the mode is now lazy" in explanation.text


def test_strict_mode_after_fused() -> None:
    x = on_tpu(4, 9)

    def step() -> torch.Tensor:
        return x.tanh().asin().sum()

    explanation_of(step)
    before = len(lazytpu.explain())
    with lazytpu.mode("strict"):
        step()
    explanations = list(lazytpu.explain())[before:]
    assert [m.code for m in explanations] == ["mode"] * 3
    assert all("were parts of programs of mode fused; the mode is now strict" in m.text for m in explanations)
    assert {m.recompile for m in explanations} == {0}


def test_ops_of_the_first_step_only() -> None:
    masks: dict[str, torch.Tensor] = {}

    def step(x: torch.Tensor) -> torch.Tensor:
        if "mask" not in masks:
            masks["mask"] = torch.full((4, 7), 0.5, device="tpu")
        return (x.tanh() * masks["mask"]).sum()

    explanation_of(step, on_tpu(4, 7))
    explanation = explanation_of(step, on_tpu(4, 7))
    assert (explanation.hint, explanation.recompile) == ("first-time", 0)


def test_train_eval_and_step_without_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Tanh()).to(
        "tpu"
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).exp().sum()

    explanation_of(step, on_tpu(4, 3))
    model.eval()
    explanation = explanation_of(step, on_tpu(4, 3))
    assert (explanation.code, explanation.hint) == ("new-trace-path", "train-eval")

    def learn(x: torch.Tensor, train: bool) -> torch.Tensor:
        loss = model(x).sin().sum()
        if train:
            loss.backward()
            model.zero_grad()
        return loss

    explanation_of(learn, on_tpu(5, 3), True)
    explanation = explanation_of(learn, on_tpu(5, 3), False)
    assert (explanation.code, explanation.hint) == ("new-trace-path", "evaluation")
    assert explanation.recompile == 0, "both steps are compiled once"


@pytest.mark.parametrize("dropout_first", [False, True])
def test_further_forward_pass_in_a_step_is_no_train_eval(dropout_first: bool) -> None:
    linear, dropout = torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)
    layers = (dropout, linear) if dropout_first else (linear, dropout)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(3, 3)).to("tpu")
    x = on_tpu(7, 3)

    def step(calls: int, train: bool) -> torch.Tensor:
        loss = model(x).square().mean()
        for _ in range(calls - 1):
            loss = loss + model(x).square().mean()
        if train:
            loss.backward()
            model.zero_grad()
        return loss

    for train in (False, True):
        explanation_of(step, 4, train)
        assert explanation_of(step, 3, train).hint == "called-again"
    assert explanation_of(step, 5, False).hint == "called-again"


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("without_grad", [False, True])
def test_second_forward_in_a_step_is_another_number_of_calls(optimizer: Any, without_grad: bool) -> None:
    """Its backward pass lies between the common ends, and it doubles the step."""
    model = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)).to("tpu")
    updates, x = optimizer(model.parameters(), lr=0.1), on_tpu(4, 3)

    def step(twice: bool) -> None:
        loss = model(x).square().mean()
        if twice:
            with torch.set_grad_enabled(not without_grad):
                target = model(x)
            loss = loss + target.square().mean()
        loss.backward()
        updates.step()
        updates.zero_grad()

    first = explanation_of(step, False)
    second = explanation_of(step, True)
    assert (first.code, second.hint, second.nearest) == ("first", "called-again", first.number)


@pytest.mark.parametrize(("rows", "hint"), [(slice(0, 2), "varying-size"), (slice(24, 32), "last-batch")])
def test_slice_within_the_data_is_no_last_batch(rows: slice, hint: str) -> None:
    data = on_tpu(32, 5 + rows.start)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.expm1().sum()

    explanation_of(step, data[:12])
    assert explanation_of(step, data[rows]).hint == hint


def test_first_step_of_an_optimizer() -> None:
    weight = torch.nn.Parameter(on_tpu(4, 3))
    optimizer = torch.optim.SGD([weight], momentum=0.9, dampening=0.5)  # its first momentum is a copy of the gradient

    def step() -> torch.Tensor:
        loss = (weight * 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    explanation_of(step)
    second = explanation_of(step)
    assert second.hint == "optimizer-states"
    assert second.fix == "none needed: happens once"
    assert second.recompile == 0, "an optimizer's first steps are no recompilation"
    before = len(lazytpu.explain())
    step()
    lazytpu.mark_step()
    assert len(lazytpu.explain()) == before


def test_optimizer_with_a_warm_up() -> None:
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
    assert hints == ["", None, None, None, None, "optimizer-branch", None, None]


def test_inputs_with_the_same_changed_size() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.erf().mul(2).sub(y).sum()

    explanation_of(step, on_tpu(32, 3), on_tpu(32, 3))
    smaller = explanation_of(step, on_tpu(8, 3), on_tpu(8, 3))
    assert (smaller.code, smaller.hint) == ("shape", "last-batch")
    assert f"nearest program #{smaller.nearest} differs only in that size" in smaller.text
    broadcast = explanation_of(step, on_tpu(16, 3), on_tpu(1, 3))
    assert (broadcast.code, f"nearest program is #{broadcast.nearest}" in broadcast.text) == ("shape", True)


SCRIPT = """
import torch
import lazytpu
x = torch.ones(5).to("tpu")
y = x.exp().sin()
lazytpu.mark_step()
explained = lazytpu.explain()
print(explained[-1].source, explained[-1].code, explained.compiles, lazytpu.metrics()["compiles"])
"""


def test_programs_from_the_cache_are_marked(tmp_path: Path) -> None:
    def run(**settings: str) -> str:
        environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path / "cache"), **settings}
        return zygote.run(["-c", SCRIPT], env=environment, check=True).stdout

    assert run().split() == ["compiled", "first", "1", "1"]
    assert run().split() == ["index", "first", "0", "0"]
    assert run(LAZYTPU_DUMP=str(tmp_path / "dump")).split() == [
        "disk",
        "first",
        "0",
        "0",
    ]  # a dump does not use the index


@pytest.mark.usefixtures("empty_cache")
def test_shared_program_is_not_counted_as_a_compilation() -> None:
    def step(x: torch.Tensor, number: float) -> torch.Tensor:
        return x.asinh() * number

    assert explanation_of(step, on_tpu(7), 3.0).source == "compiled"
    before = lazytpu.metrics()["compiles"]
    # An int has another type promotion, but the same code here.
    explanation = explanation_of(step, on_tpu(7), 3)
    assert (explanation.code, explanation.source) == ("dtype", "shared")
    assert lazytpu.metrics()["compiles"] == before


def test_explanations_are_counted_and_printed() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().cosh()

    explanation_of(step, on_tpu(3))
    explanation_of(step, on_tpu(4))
    explained = lazytpu.explain()
    assert sum(explained.counts.values()) == len(explained) == len(explained.programs)
    assert set(explained.counts) <= set(CODES)
    assert explained.compiles <= len(explained)
    text = str(explained)
    assert text == repr(explained)
    assert explained[-1].text in text and all(line in text for line in explained[-1].diff)


def test_debug_reports_each_compilation_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().tan()

    with lazytpu.options(debug=1):
        explanation_of(step, on_tpu(3, 2))
        explanation = explanation_of(step, on_tpu(4, 2))
    printed = " ".join(capsys.readouterr().err.split())
    assert "is made because: no earlier program is like it" in printed
    assert " ".join(explanation.text.split()) in printed


def test_tensor_of_another_module_is_no_last_batch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)).to("tpu")
    x = on_tpu(5, 6)
    explanation_of(lambda: model[0](x))

    def step(layer: torch.nn.Module) -> torch.Tensor:
        return layer(x).exp().sum()

    explanation_of(step, model[0])
    other = explanation_of(step, model[1])
    assert (other.code, other.hint) == ("shape", "other-module")
    assert "none needed" in other.fix


def test_size_that_has_changed_before_is_no_last_batch() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.expm1().cumsum(0)

    with lazytpu.options(buckets="off"):
        sizes = [explanation_of(step, on_tpu(n, 11)).hint for n in (20, 12, 17, 9)]
    assert sizes == ["", "last-batch", "varying-size", "varying-size"]


def test_size_is_reported_where_it_entered() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sinh().sum()

    explanation_of(step, torch.ones(6, 13).to("tpu"))
    changed = explanation_of(step, torch.ones(4, 13).to("tpu"))
    line = step.__code__.co_firstlineno + 4
    here = os.path.relpath(__file__)
    assert changed.entered == f"{here}:{line}"
    assert changed.text.startswith(f"the tensor uploaded at {here}:{line}, argument 1 (`self`) of `sinh` at {here}:")
    assert changed.line == f"{here}:{line - 3}"


def test_train_eval_is_a_switch_of_one_model() -> None:
    first = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Tanh()).to("tpu")
    other = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 4), torch.nn.Tanh()).to("tpu")

    def step(model: torch.nn.Module) -> torch.Tensor:
        return model(x).asinh().sum()

    x = on_tpu(3, 4)
    explanation_of(step, first.eval())
    assert explanation_of(step, other.train()).hint != "train-eval"


def test_single_ops_of_debug_mode_have_no_cause_in_the_script() -> None:
    x = on_tpu(9, 3)
    with lazytpu.mode("debug"):
        explanation_of(lambda: x.atan())
        explanation_of(lambda: x[:4].atan())
    last = lazytpu.explain()[-1]
    assert (last.hint, last.recompile) == ("", 0)
    assert last.fix == "none needed: mode debug compiles each op once for each shape, and later steps compile nothing"


def test_debug_mode_warns_once_of_its_compilations(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = ("import torch, lazytpu", "lazytpu.set_mode('debug')", "x = torch.ones(3).to('tpu')", "y = x.exp()")
    script.write_text("\n".join([*lines, "z = y.sin()"]))
    ran = zygote.run(["-W", "always", str(script)], check=True)
    warned = [line for line in ran.stderr.splitlines() if "mode debug runs each op by itself" in line]
    assert len(warned) == 1 and ":4: UserWarning" in warned[0]


def test_fix_of_a_number_that_changes_survives_a_refusal() -> None:
    made = Made(0, "step", 1)
    made.explain(Reason("static-scalar", "k was 9, is 11", "keep it fixed"), 1)
    made.refuse("refused", "`topk` at train.py:3 needs one size: it does")
    assert made.otherwise == "keep it fixed"
    assert made.text == "k was 9, is 11; fix: keep it fixed; `topk` at train.py:3 needs one size: it does"
