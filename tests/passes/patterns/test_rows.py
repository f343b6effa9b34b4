"""Rows that are read from, and written to, a part of a large value."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla.evaluate import evaluate
from tests.passes.modules import parse_main

FLAT = np.arange(24, dtype=np.float32)  # eight rows of three; the part has five rows from the second on
PART = """
    %s = lazytpu.slice %x starts = [3] limits = [18] strides = [1] : (tensor<24xf32>) -> tensor<15xf32>
    %r = lazytpu.reshape %s : (tensor<15xf32>) -> tensor<5x3xf32>
"""
WRITE = """
    %w = lazytpu.scatter {kind} %r, %i, %u update_window_dims = [1] inserted_window_dims = [0]
        scatter_dims_to_operand_dims = [0] index_vector_dim = 1
        : (tensor<5x3xf32>, tensor<{n}xi64>, tensor<{n}x3xf32>) -> tensor<5x3xf32>
    %f = lazytpu.reshape %w : (tensor<5x3xf32>) -> tensor<15xf32>
    %c = lazytpu.constant 3 : tensor<i32>
    %y = lazytpu.dynamic_update_slice %x, %f, %c : (tensor<24xf32>, tensor<15xf32>, tensor<i32>) -> tensor<24xf32>
"""
READ = """
    %g = lazytpu.gather {0}, %i offset_dims = [1] collapsed_slice_dims = [0] start_index_map = [0] index_vector_dim = 1
        slice_sizes = [1, 3] : (tensor<5x3xf32>, tensor<{n}xi64>) -> tensor<{n}x3xf32>
"""
AGAIN = """
    %t = lazytpu.slice %y starts = [3] limits = [18] strides = [1] : (tensor<24xf32>) -> tensor<15xf32>
    %q = lazytpu.reshape %t : (tensor<15xf32>) -> tensor<5x3xf32>
"""
ARGUMENTS = "%x : tensor<24xf32>, %i : tensor<{n}xi64>, %u : tensor<{n}x3xf32>"


def canonical(body: str, indices: list[int]) -> tuple[ModuleOp, list[list[np.ndarray]]]:
    """Return the module after canonicalize, and its results with these indices before and after."""
    n = len(indices)
    module = parse_main(ARGUMENTS.format(n=n), body)
    arrays = [FLAT, np.array(indices), -1 - np.arange(3 * n, dtype=np.float32).reshape(n, 3)]
    before = evaluate(emit(module), arrays)
    run_pipeline(module, passes="canonicalize", verify=True)
    return module, [before, evaluate(emit(module), arrays)]


def ops(module: ModuleOp) -> list[str]:
    return [op.name.removeprefix("lazytpu.") for op in module.walk()]


INDICES = [[0, 4], [3, 1], [-1, 2], [5, 2], [7, -3], [2], [-1], [5], [4]]


@pytest.mark.parametrize("indices", INDICES, ids=str)
@pytest.mark.parametrize("kind", ["set", "add"])
def test_rows_are_written_in_the_whole(kind: str, indices: list[int]) -> None:
    n = len(indices)
    body = PART + WRITE.format(kind=kind, n=n) + "func.return %y : tensor<24xf32>"
    module, (before, after) = canonical(body, indices)
    np.testing.assert_array_equal(before, after)
    names = ops(module)
    assert "slice" not in names, "nothing of the part is copied"
    assert names.count("scatter") + names.count("dynamic_update_slice") == 1
    assert ("dynamic_update_slice" in names) == (kind == "set" and n == 1)


@pytest.mark.parametrize("indices", [i for i in INDICES if len(i) == 2], ids=str)
def test_rows_are_read_from_the_whole(indices: list[int]) -> None:
    """Before the write, from its result, and after it."""
    reads = [READ.format(row, n=2).replace("%g", f"%g{k}") for k, row in enumerate(("%r", "%w", "%q"))]
    returned = "func.return %g0, %g1, %g2, %y : " + "tensor<2x3xf32>, " * 3 + "tensor<24xf32>"
    first, *later_reads = reads
    body = PART + first + WRITE.format(kind="set", n=2) + AGAIN + "".join(later_reads) + returned
    module, (before, after) = canonical(body, indices)
    for old_result, new_result in zip(before, after, strict=True):
        np.testing.assert_array_equal(old_result, new_result)
    assert "slice" not in ops(module)


def test_reads_in_between_see_the_new_rows() -> None:
    between = "%z = lazytpu.neg %w : tensor<5x3xf32>\n"
    write = WRITE.format(kind="set", n=2)
    cut = write.index("%f =")
    body = PART + write[:cut] + between + write[cut:] + "func.return %z, %y : tensor<5x3xf32>, tensor<24xf32>"
    _, (before, after) = canonical(body, [0, 4])
    for old_result, new_result in zip(before, after, strict=True):
        np.testing.assert_array_equal(old_result, new_result)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%c = lazytpu.constant 3", "%c = lazytpu.constant 4"),  # written to another place
        ("starts = [3] limits = [18]", "starts = [2] limits = [17]"),  # its rows are no rows of the whole
    ],
)
def test_other_parts_stay(old: str, new: str) -> None:
    body = (PART + WRITE.format(kind="set", n=2) + "func.return %y : tensor<24xf32>").replace(old, new)
    module, (before, after) = canonical(body, [0, 4])
    np.testing.assert_array_equal(before, after)
    assert "slice" in ops(module)
