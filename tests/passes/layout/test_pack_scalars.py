"""Scalars with equal computations, as the elements of one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.layout.horizontal_fusion import DEEPEST
from lazytpu.passes.pipeline import PassError, run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.lowering.harness import module_of
from tests.passes.modules import keeps, parse_main, rewrites

COUNTERS = "%n : tensor<4xi64>, %a : tensor<i64>, %b : tensor<i64>, %c : tensor<i64>, %d : tensor<i64>"
I64 = "tensor<i64>"
COUNTED = "\n".join(
    f"""
        %{2 * i} = lazytpu.number %n {i} : (tensor<4xi64>) -> {I64}
        %{2 * i + 1} = lazytpu.add %{name}, %{2 * i} : {I64}"""
    for i, name in enumerate("abcd")
)
RETURN = f"func.return %1, %3, %5, %7 : {', '.join([I64] * 4)}"


def test_counters_are_packed_into_a_vector() -> None:
    rewrites(
        "pack-scalars,dce",
        COUNTERS,
        COUNTED + RETURN,
        """
        %0 = lazytpu.reshape %a : (tensor<i64>) -> tensor<1xi64>
        %1 = lazytpu.reshape %b : (tensor<i64>) -> tensor<1xi64>
        %2 = lazytpu.reshape %c : (tensor<i64>) -> tensor<1xi64>
        %3 = lazytpu.reshape %d : (tensor<i64>) -> tensor<1xi64>
        %4 = lazytpu.concatenate %0, %1, %2, %3 dim = 0
             : (tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4xi64>
        %5 = lazytpu.add %4, %n : tensor<4xi64>
        %6 = lazytpu.slice %5 starts = [0] limits = [1] strides = [1] : (tensor<4xi64>) -> tensor<1xi64>
        %7 = lazytpu.reshape %6 : (tensor<1xi64>) -> tensor<i64>
        %8 = lazytpu.slice %5 starts = [1] limits = [2] strides = [1] : (tensor<4xi64>) -> tensor<1xi64>
        %9 = lazytpu.reshape %8 : (tensor<1xi64>) -> tensor<i64>
        %10 = lazytpu.slice %5 starts = [2] limits = [3] strides = [1] : (tensor<4xi64>) -> tensor<1xi64>
        %11 = lazytpu.reshape %10 : (tensor<1xi64>) -> tensor<i64>
        %12 = lazytpu.slice %5 starts = [3] limits = [4] strides = [1] : (tensor<4xi64>) -> tensor<1xi64>
        %13 = lazytpu.reshape %12 : (tensor<1xi64>) -> tensor<i64>
        func.return %7, %9, %11, %13 : tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>""",
    )


def test_three_equal_scalars_are_left_alone() -> None:
    keeps("pack-scalars", COUNTERS, COUNTED.replace("lazytpu.add %d", "lazytpu.sub %d") + RETURN)


def test_dependent_scalars_are_not_packed_together() -> None:
    """The third sum depends on the first, through a vector."""
    keeps(
        "pack-scalars",
        "%a : tensor<f32>, %b : tensor<f32>",
        """
        %0 = lazytpu.mul %a, %b : tensor<f32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [] : (tensor<f32>) -> tensor<3xf32>
        %2 = lazytpu.reduce add %1 dims = [0] : (tensor<3xf32>) -> tensor<f32>
        %3 = lazytpu.mul %2, %b : tensor<f32>
        %4 = lazytpu.broadcast_in_dim %3 dims = [] : (tensor<f32>) -> tensor<3xf32>
        %5 = lazytpu.reduce add %4 dims = [0] : (tensor<3xf32>) -> tensor<f32>
        %6 = lazytpu.mul %5, %b : tensor<f32>
        %7 = lazytpu.broadcast_in_dim %6 dims = [] : (tensor<f32>) -> tensor<3xf32>
        %8 = lazytpu.reduce add %7 dims = [0] : (tensor<3xf32>) -> tensor<f32>
        %9 = lazytpu.mul %8, %b : tensor<f32>
        func.return %9 : tensor<f32>""",
    )


def test_chains_with_a_shared_value_keep_their_bits() -> None:
    rng = np.random.default_rng(0)

    def build(b: Any, x: Any, *scalars: Any) -> Any:
        shared = b.reduce("add", x, (0,))
        results = []
        for i, scalar in enumerate(scalars):
            decayed = b.sub(b.constant(1.0, "f32"), b.number(x, i))
            results.append(b.div(b.mul(scalar, decayed), b.add(shared, b.constant(0.5 + (i > 2), "f32"))))
        return [b.broadcast_in_dim(value, (2,), ()) for value in results] + [results[0]]

    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((5,), *[()] * 5)]
    text = packed_to_the_same_bits(build, *arrays)
    assert "tensor<5xf32>" in text and "div" in text


@pytest.mark.parametrize("depth", [1, 2 * DEEPEST])
def test_packed_values_may_be_part_of_deeper_trees(depth: int) -> None:
    """Half of the first values have uses outside of the trees, and so are packed. All are part of the last values, and
    each of these is used before the next is computed. Trees deeper than the limit of `vector_of` are packed to it."""

    def build(b: Any, x: Any, *scalars: Any) -> Any:
        results: list[Any] = []
        for i, scalar in enumerate(scalars):
            difference = b.sub(scalar, b.number(x, i))
            if i % 2 == 0:
                results.append(b.broadcast_in_dim(difference, (3,), ()))
            for _ in range(depth):
                difference = b.mul(difference, scalar)
            results.append(b.broadcast_in_dim(difference, (2,), ()))
        return results

    numbers = np.linspace(-1, 1, 8, dtype=np.float32)
    packed_to_the_same_bits(build, numbers, *numbers[::-1])


def test_operands_used_twice_are_packed_once() -> None:
    """The value before the last is an operand twice, the one before it four times, and so on."""

    def build(b: Any, *scalars: Any) -> Any:
        for _ in range(40):
            scalars = tuple(b.mul(scalar, scalar) for scalar in scalars)
        return [b.broadcast_in_dim(scalar, (2,), ()) for scalar in scalars]

    module = module_of(build, *[("f32", ())] * 4)
    run_pipeline(module, passes="pack-scalars", verify=True)
    assert print_module(module).count("lazytpu.mul") == DEEPEST + 4 * (40 - DEEPEST)


def packed_to_the_same_bits(build: Any, *arrays: Any) -> str:
    """Return the text of a packed program, after comparing its results with the program's."""
    results: list[list[np.ndarray]] = []
    for passes in ("dce", "pack-scalars,cse,canonicalize,cse,dce"):
        module = module_of(build, *[("f32", np.shape(array)) for array in arrays])
        run_pipeline(module, passes=passes, verify=True)
        got = Program.compile(emit(module)).run([client.to_device(np.asarray(array)) for array in arrays])
        results.append([client.to_host(value) for value in got])
    for plain, packed in zip(*results, strict=True):
        np.testing.assert_array_equal(packed, plain)
    return print_module(module)


def test_source_line_is_kept() -> None:
    rewritten = parse_main(COUNTERS, COUNTED.replace(f"%0 : {I64}", f'%0 : {I64} loc("train.py":7:0)') + RETURN)
    run_pipeline(rewritten, passes="pack-scalars", verify=True)
    assert "lazytpu.add" in print_module(rewritten) and print_module(rewritten).count('loc("train.py":7:0)') == 1


def test_unknown_option_is_refused() -> None:
    with pytest.raises((PassError, ValueError), match="most"):
        run_pipeline(parse_main(COUNTERS, COUNTED + RETURN), passes="pack-scalars{most=3}", verify=True)
