"""Dead code elimination."""

from __future__ import annotations

from lazytpu.passes.pipeline import run_pipeline
from tests.passes.modules import keeps, parse_main, rewrites


def test_chain_of_unused_ops_is_erased() -> None:
    rewrites(
        "dce",
        "%x : tensor<4xf32>, %unused : tensor<2xi32>",
        """
        %0 = lazytpu.exp %x : tensor<4xf32>
        %1 = lazytpu.log %0 : tensor<4xf32>
        %2 = lazytpu.add %1, %0 : tensor<4xf32>
        func.return %0 : tensor<4xf32>""",
        "%0 = lazytpu.exp %x : tensor<4xf32>\nfunc.return %0 : tensor<4xf32>",
    )


def test_op_with_one_used_result_stays() -> None:
    keeps(
        "dce",
        "%x : tensor<4x3xf32>",
        """
        %0, %1 = lazytpu.argreduce max %x dim = 1 : (tensor<4x3xf32>) -> (tensor<4xf32>, tensor<4xi64>)
        func.return %1 : tensor<4xi64>""",
    )


def test_functions_and_their_arguments_stay() -> None:
    emptied = parse_main("%x : tensor<4xf32>", "%0 = lazytpu.exp %x : tensor<4xf32>\nfunc.return")
    (before, after) = run_pipeline(emptied, passes="dce", verify=True)
    assert (before.ops_after, after.ops_after) == (3, 2)
    assert len(next(iter(emptied.ops)).regions[0].block.args) == 1
