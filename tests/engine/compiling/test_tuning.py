"""max-autotune: the candidate pipelines of a program, and the choice among them."""

from __future__ import annotations

import pytest

from lazytpu.engine.compiling import tuning
from lazytpu.engine.compiling.tuning import Candidate, candidates, fastest
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import without

MODULE = """
func.func @main(%x: tensor<8x16xf32>, %i: tensor<8x1xi32>) -> tensor<8x1xf32> {
  %0 = lazytpu.exp %x : tensor<8x16xf32>
  %1 = lazytpu.log1p %0 : tensor<8x16xf32>
  %2 = lazytpu.reduce add %1 dims = [1] : (tensor<8x16xf32>) -> tensor<8xf32>
  %3 = lazytpu.reshape %2 : (tensor<8xf32>) -> tensor<8x1xf32>
  func.return %3 : tensor<8x1xf32>
}
"""


def test_candidates_compile_to_different_programs() -> None:
    module = parse_module(MODULE, "step")
    before = print_module(module)
    choices = candidates(module, "dce,gather-first,canonicalize,pack-scalars", "step")
    assert [choice.what for choice in choices] == ["all passes"]
    assert print_module(module) == before


def test_pass_is_removed_from_a_pipeline() -> None:
    assert without("dce,some-pass{a=1 b=2},cse", "some-pass") == "dce,cse"
    assert without("dce,some-pass{a=1},cse,dce", "dce") == "some-pass{a=1},cse"
    assert without("flash-attention,dce", "flash-attention") == "decompose-attention,dce"


def test_fastest_candidate_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [Candidate("all passes", "a,b", "1"), Candidate("without b", "a", "2"), Candidate("without a", "b", "3")]
    times = {"1": 3e-6, "2": 2e-6, "3": float("inf")}
    monkeypatch.setattr(tuning, "candidates", lambda *args: choices)
    monkeypatch.setattr(tuning, "seconds", lambda choice, generation, name: times[choice.stablehlo])
    module = parse_module(MODULE, "step")
    assert fastest(module, "a,b", "v6e", "step") == "a"
    times["2"] = float("inf")
    assert fastest(module, "a,b", "v6e", "step") == "a,b"
