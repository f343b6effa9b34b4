"""A program for many sizes runs where its guards hold; `verify_sizes` compares it with the import at each size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from xdsl.ir import SSAValue

import lazytpu
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.engine.sizes import padded as making
from lazytpu.engine.sizes.verification import compare, expressions_of
from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import Derivation
from lazytpu.passes.padding.annotations import read
from lazytpu.passes.padding.walk import Refusal
from lazytpu.runtime.buffers import padded
from tests.passes.padding.sized import module_at

RANGE = {"n": (9, 16)}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(padded, "POISON", True)
    lazytpu.sync()
    with lazytpu.options(buckets=(32, 40), background_compile=0.0, on_host=False, verify_sizes=True):
        yield
        lazytpu.sync()


def program(packs: dict[str, Any], *checks: object) -> Any:
    return SimpleNamespace(packer=SimpleNamespace(entries=packs), checks=checks)


def compare_at(build: Callable[..., SSAValue], size: int, binding: Any) -> None:
    module = module_at(build, ["f32[n,4]"], {"n": size})
    imported: Any = SimpleNamespace(module=module, packer=SimpleNamespace(entries={}), checks=[])
    compare(binding, expressions(build), imported, {"n": size})


def expressions(build: Callable[..., SSAValue]) -> Expressions:
    with Derivation(RANGE) as derivation:
        reading = read(module_at(build, ["f32[n,4]"], {"n": derivation.size(symbol("n"))}))
    return expressions_of(reading, False, True)


def wrong(build: Callable[..., SSAValue], size: int) -> str:
    """Return why the program differs from the import at a size, or "" if they agree."""
    try:
        compare_at(build, size, program({}))
    except Refusal as error:
        return str(error)
    return ""


def test_integer_with_a_wrong_expression_is_refused() -> None:
    def build(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.slice(x, [0, 0], [n - 2 if n != 11 else 8, 4])

    assert wrong(build, 10) == ""
    reason = wrong(build, 11)
    assert "at n = 11 its `limits` has 8, where the program computes n-2 = 9" in reason
    assert "lazytpu.slice" in reason


def test_different_op_or_attribute_is_refused() -> None:
    def build(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.exp(x) if n != 11 else b.unary("tanh", x)

    def reduced(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.reduce("add" if n != 11 else "max", x, [0])

    assert wrong(build, 10) == wrong(reduced, 10) == ""
    assert "at n = 11 it has another op" in wrong(build, 11) and "lazytpu.tanh" in wrong(build, 11)
    assert "at n = 11 it has another op" in wrong(reduced, 11)


@pytest.mark.parametrize(
    ("dtype", "constant", "what"),
    [
        ("f32", lambda n: 1 / n if n != 11 else 1 / n * (1 + 2e-7), "near to a reciprocal"),
        ("f64", lambda n: 2 / n if n != 11 else 2 / n * (1 + 1e-9), "near to a reciprocal"),
        ("f64", lambda n: 0.4 if n != 11 else 0.4 * (1 + 1e-9), "near to a number"),
        ("f64", lambda n: 2.5e-7 if n != 11 else 2.6e-7, "small"),
        ("f32", lambda n: 0.0 if n != 11 else -0.0, "zero"),
    ],
)
def test_floats_are_compared_by_bits(dtype: str, constant: Callable[[int], float], what: str) -> None:
    def build(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.constant(constant(n), dtype, (4,))

    assert wrong(build, 10) == ""
    assert "at n = 11" in wrong(build, 11), what


def test_different_run_time_numbers_or_checks_are_refused() -> None:
    def build(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.exp(x)

    check: Any = SimpleNamespace(record=0, error="IndexError", message="out of range")
    with pytest.raises(Refusal, match="takes other run-time numbers"):
        compare_at(build, 11, program({"f32": ((0, "real", "f32"),)}))
    with pytest.raises(Refusal, match="checks other values"):
        compare_at(build, 11, program({}, check))


def test_expressions_round_trip_as_text() -> None:
    def build(b: Builder, x: SSAValue, n: int) -> SSAValue:
        return b.mul(b.slice(x, [0, 0], [(n + 1) // 2, 4]), b.constant(1 / n, "f32", ((n + 1) // 2, 4)))

    original = replace(expressions(build), guards=(("n-2*(n)/2", "==", True),))
    assert Expressions.decode(original.encode()) == original
    for text in (
        "",
        "AA==",
        original.encode()[:-8],
        replace(original, numbers=(99,)).encode(),
        replace(original, forms=("n+",)).encode(),
        replace(original, guards=(("n+", "==", True),)).encode(),
    ):
        with pytest.raises((ValueError, TypeError)):
            Expressions.decode(text)


@pytest.mark.usefixtures("poisoned", "fresh_traces")
def test_wrong_program_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expressions have a wrong term in place of n-3, which is equal at the first size of the program."""
    derived = making.expressions_of

    def wrongly(*arguments: Any) -> Expressions:
        correct = derived(*arguments)
        return replace(correct, forms=tuple(["n-3-(n+3)/4+(n)/4" if form == "n-3" else form for form in correct.forms]))

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)[: len(x) - 3].mean(0) * 3

    monkeypatch.setattr(making, "expressions_of", wrongly)
    before = len(lazytpu.explain())
    for n in (33, 36, 37, 38):
        x = torch.randn(n, 7)
        torch.testing.assert_close(run(x.to("tpu")).cpu(), run(x))
    explanations = "\n".join(map(str, list(lazytpu.explain())[before:]))
    assert "was dropped, as it is not this program: at n = 37 its `limits` has 34" in explanations
    assert "test_verification.py" in explanations
    assert "`slice` at " in explanations


@pytest.mark.usefixtures("poisoned", "fresh_traces")
def test_size_with_a_failing_guard_has_an_exact_program() -> None:
    """The program depends on a number that Python computes from the size, here the remainder of division by 4."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.std(x, 0) + x.roll(len(x) % 4, 0)[0]

    for n in (33, 37, 36, 40, 35, 39, 34, 38):
        x = torch.randn(n, 7)
        torch.testing.assert_close(run(x.to("tpu")).cpu(), run(x))


SCRIPT = """
import json, sys
import torch, lazytpu
lazytpu.options.background_compile, lazytpu.options.on_host = 0.0, False

def run(x):
    return torch.relu(x)[: len(x) - 3].mean(0) * 5

seen = []
for n in map(int, sys.argv[1:]):
    x = torch.arange(n * 6.0).reshape(n, 6)
    right = torch.allclose(run(x.to("tpu")).cpu(), run(x))
    seen.append([n, right, "xdsl" in sys.modules])
print(json.dumps({"seen": seen, "compiles": lazytpu.metrics()["compiles"]}))
"""


def test_later_process_runs_new_sizes_without_an_import(tmp_path: Path) -> None:
    def process(*sizes: int) -> dict[str, Any]:
        settings = {"CACHE_DIR": str(tmp_path / "cache"), "BUCKETS": "auto", "VERIFY_SIZES": "0"}
        environment = {**os.environ, **{f"LAZYTPU_{name}": value for name, value in settings.items()}}
        command = [sys.executable, "-c", SCRIPT, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = process(33, 36, 38, 34)
    assert first["compiles"] == 2
    assert all(right for _, right, _ in first["seen"])
    second = process(33, 36, 38, 34, 37)
    assert second["compiles"] == 0
    assert second["seen"] == [[n, True, False] for n in (33, 36, 38, 34, 37)]
