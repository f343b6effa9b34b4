"""Modes and options of torch.compile: the ones with an effect on the device, and the rejected ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.dynamo import modes
from lazytpu.dynamo.modes import TuningWarning


@pytest.fixture(autouse=True)
def few_graphs() -> None:
    """Forget the graphs of other tests: Dynamo compiles one function eight times at most."""
    torch.compiler.reset()


def call(**options: Any) -> torch.Tensor:
    return torch.compile(lambda x: x.sin() + 1, **options)(torch.zeros(2, device="tpu"))


@pytest.mark.parametrize("backend", ["inductor", "tpu"])
def test_tuning_without_a_choice_warns_once_with_the_reason(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_told", set[str]())
    with pytest.warns(TuningWarning, match="tunes nothing.*programs are made for the cpu") as caught:
        assert call(backend=backend, mode="max-autotune").tolist() == [1, 1]
    assert [item.filename for item in caught if item.category is TuningWarning] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TuningWarning)
        call(backend=backend, mode="max-autotune-no-cudagraphs")
        call(backend=backend, mode="reduce-overhead")
        call(backend=backend, options={"max_autotune": False})


def test_unknown_modes_and_options_are_refused() -> None:
    with pytest.raises(Exception, match="no mode 'fastest'; on 'tpu' the modes are default, reduce-overhead, max-auto"):
        call(backend="tpu", mode="fastest")
    for backend in ("inductor", "tpu"):
        with pytest.raises(Exception, match="Unexpected optimization option fastest"):
            call(backend=backend, options={"fastest": True})
    assert call().tolist() == [1, 1]


def test_options_of_generated_code_are_ignored_with_one_warning_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries set such options, which their users cannot leave out."""
    monkeypatch.setattr(modes, "_told", set[str]())
    options = {"epilogue_fusion": True, "wrap_inductor_compiled_regions": True, "triton.cudagraphs": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [call(backend="tpu", options=options).tolist() for _ in range(2)]
    assert results == [[1, 1], [1, 1]]
    texts = [str(item.message) for item in caught if item.category is TuningWarning]
    assert len(texts) == 2
    assert "'epilogue_fusion' of inductor has no effect" in texts[0]
    assert "'wrap_inductor_compiled_regions'" in texts[1]


def test_an_option_that_is_a_function_is_refused() -> None:
    def change(graph: torch.fx.Graph) -> None:
        graph.eliminate_dead_code()

    with pytest.raises(Exception, match="no option 'post_grad_custom_pre_pass' with a function"):
        call(backend="tpu", options={"post_grad_custom_pre_pass": change})


def test_passes_are_chosen_for_a_tuned_graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.engine.compiling import tuning
    from lazytpu.engine.programs import target

    asked: list[str] = []

    def fastest(module: Any, passes: str, generation: str, name: str) -> str:
        asked.append(generation)
        return passes

    monkeypatch.setattr(tuning, "fastest", fastest)
    monkeypatch.setattr(target, "installed", lambda: True)
    with lazytpu.options(target="v6e"):
        assert call(mode="max-autotune").tolist() == [1, 1]
        tuned = len(asked)
        assert call().tolist() == [1, 1]
    assert set(asked) == {"v6e"} and len(asked) == tuned
