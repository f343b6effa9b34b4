"""Passes preserve the results of programs: random programs through StableHLO's reference interpreter, before and after.

A few dozen programs in every run of the tests; `make random-programs` draws a thousand, or as many as N says.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering import emit
from lazytpu.passes.generations import GENERATIONS
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.registry import BUILT_IN
from lazytpu.passes.target import Target
from lazytpu.runtime.xla.evaluate import evaluate
from tests.passes.programs import inputs, programs

PROGRAMS = int(os.environ.get("RANDOM_PROGRAMS", "25"))


def quickly(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


TARGETS = [Target("cpu"), Target("gpu"), Target("tpu"), *(Target("tpu", name) for name in GENERATIONS)]
V6E = Target("tpu", "v6e")
# Each pass alone, with its options for a TPU, and every pipeline.
EACH = list(dict.fromkeys([*(entry.text(V6E) for entry in BUILT_IN.values()), *map(for_target, TARGETS)]))


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Check for the same dtype, shape and bits; any NaN equals any other."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.dtype.kind == "c":
        assert_same_bits(actual.real, expected.real)
        assert_same_bits(actual.imag, expected.imag)
    elif actual.dtype.kind == "f" or actual.dtype == ml_dtypes.bfloat16:
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(actual), nan)
        a, b = np.where(nan, 0, actual), np.where(nan, 0, expected)
        assert np.array_equal(a, b)
        assert np.array_equal(np.signbit(a), np.signbit(b))
    else:
        assert np.array_equal(actual, expected)


@given(program=programs(), seed=st.integers(0, 9))
@quickly(PROGRAMS)
def test_same_results(program: str, seed: int) -> None:
    arrays, module = inputs(seed), parse_module(program)
    expected = evaluate(emit(module), arrays)
    compared = {program}
    for passes in EACH:
        rewritten = module.clone()
        run_pipeline(rewritten, passes=passes, verify=True)
        after = print_module(rewritten)
        if after in compared:
            continue
        compared.add(after)
        note(f"after {passes}:\n{after}")
        for actual, want in zip(evaluate(emit(rewritten), arrays), expected, strict=True):
            assert_same_bits(actual, want)


@given(program=programs())
@quickly(25)
def test_canonical_form_is_stable(program: str) -> None:
    module = parse_module(program)
    run_pipeline(module, passes="canonicalize", verify=False)
    once = print_module(module)
    run_pipeline(module, passes="canonicalize", verify=False)
    assert print_module(module) == once


@given(program=programs())
@quickly(25)
def test_text_of_a_rewritten_module_parses(program: str) -> None:
    module = parse_module(program)
    run_pipeline(module, verify=False)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
