"""Gathers of one element per row, moved before the ops that compute the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.lowering.harness import module_of
from tests.passes.modules import keeps, parse_main, rewrites

ARGUMENTS = "%x : tensor<4x9xbf16>, %r : tensor<4xf32>, %i : tensor<4xi32>, %j : tensor<2xi32>"
ROW = """collapsed_slice_dims = [1] operand_batching_dims = [0] start_indices_batching_dims = [0]
         start_index_map = [1] index_vector_dim = 1 slice_sizes = [1, 1]"""


def test_gather_of_log_probabilities() -> None:
    rewrites(
        "gather-first,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.convert %x : (tensor<4x9xbf16>) -> tensor<4x9xf32>
        %1 = lazytpu.broadcast_in_dim %r dims = [0] : (tensor<4xf32>) -> tensor<4x9xf32>
        %2 = lazytpu.sub %0, %1 : tensor<4x9xf32>
        %3 = lazytpu.gather %2, %i {ROW} : (tensor<4x9xf32>, tensor<4xi32>) -> tensor<4xf32>
        func.return %3 : tensor<4xf32>""",
        f"""
        %0 = lazytpu.gather %x, %i {ROW} : (tensor<4x9xbf16>, tensor<4xi32>) -> tensor<4xbf16>
        %1 = lazytpu.convert %0 : (tensor<4xbf16>) -> tensor<4xf32>
        %3 = lazytpu.sub %1, %r : tensor<4xf32>
        func.return %3 : tensor<4xf32>""",
    )


def test_whole_rows_are_left_alone() -> None:
    keeps(
        "gather-first",
        ARGUMENTS,
        """
        %0 = lazytpu.convert %x : (tensor<4x9xbf16>) -> tensor<4x9xf32>
        %1 = lazytpu.gather %0, %j offset_dims = [1] collapsed_slice_dims = [0] start_index_map = [0]
             index_vector_dim = 1 slice_sizes = [1, 9] : (tensor<4x9xf32>, tensor<2xi32>) -> tensor<2x9xf32>
        func.return %1 : tensor<2x9xf32>""",
    )


def test_ops_that_are_not_elementwise_are_left_alone() -> None:
    keeps(
        "gather-first",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reverse %x dims = [1] : tensor<4x9xbf16>
        %1 = lazytpu.gather %0, %i {ROW} : (tensor<4x9xbf16>, tensor<4xi32>) -> tensor<4xbf16>
        func.return %1 : tensor<4xbf16>""",
    )


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_bits_are_kept(kind: str) -> None:
    rng = np.random.default_rng(0)
    x, r, i = rng.standard_normal((5, 7)), rng.standard_normal(5), np.array([0, 6, 3, 9, -1])

    def build(b: Any, x: Any, r: Any, i: Any) -> Any:
        rows = b.binary(kind, b.sub(x, b.broadcast_in_dim(r, (5, 7), [0])), x)
        dims = {"collapsed_slice_dims": [1], "start_index_map": [1]}
        batch = {"operand_batching_dims": [0], "start_indices_batching_dims": [0]}
        return b.gather(rows, i, offset_dims=(), index_vector_dim=1, slice_sizes=[1, 1], **dims, **batch)

    arrays = [x.astype(np.float32), r.astype(np.float32), i.astype(np.int32)]
    results: list[np.ndarray] = []
    for passes in ("dce", "gather-first,cse,dce"):
        module = module_of(build, ("f32", (5, 7)), ("f32", (5,)), ("i32", (5,)))
        run_pipeline(module, passes=passes, verify=True)
        (got,) = Program.compile(emit(module)).run([client.to_device(a) for a in arrays])
        results.append(client.to_host(got))
    np.testing.assert_array_equal(*results)


def test_source_line_is_kept() -> None:
    body = f"""
        %0 = lazytpu.sub %x, %x : tensor<4x9xbf16>
        %1 = lazytpu.gather %0, %i {ROW} : (tensor<4x9xbf16>, tensor<4xi32>) -> tensor<4xbf16> loc("train.py":7:0)
        func.return %1 : tensor<4xbf16>"""
    rewritten = parse_main(ARGUMENTS, body)
    run_pipeline(rewritten, passes="gather-first,dce", verify=True)
    text = print_module(rewritten)
    assert text.count("gather %x") == 2 and text.count('loc("train.py":7:0)') == 3
