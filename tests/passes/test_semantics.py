"""Passes keep what programs compute: random programs through StableHLO's reference interpreter, before and after."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import DEFAULT, run_pipeline
from lazytpu.runtime.evaluate import evaluate
from tests.passes.programs import inputs, programs

quickly = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """The same dtype, shape and bits; any NaN is any other."""
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


@pytest.mark.parametrize("passes", ["canonicalize", "constant-folding", "cse", DEFAULT])
@given(program=programs(), seed=st.integers(0, 9))
@quickly
def test_same_results(passes: str, program: ModuleOp, seed: int) -> None:
    arrays = inputs(seed)
    expected = evaluate(emit(program), arrays)
    run_pipeline(program, passes=passes, verify=True)
    for actual, wanted in zip(evaluate(emit(program), arrays), expected, strict=True):
        assert_same_bits(actual, wanted)


@given(program=programs())
@quickly
def test_canonical_form_is_stable(program: ModuleOp) -> None:
    run_pipeline(program, passes="canonicalize", verify=False)
    once = print_module(program)
    run_pipeline(program, passes="canonicalize", verify=False)
    assert print_module(program) == once


@given(program=programs())
@quickly
def test_text_of_a_rewritten_module_reads_back(program: ModuleOp) -> None:
    run_pipeline(program, verify=False)
    text = print_module(program)
    assert print_module(parse_module(text)) == text
