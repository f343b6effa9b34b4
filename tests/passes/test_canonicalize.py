"""The driver of canonicalize."""

from __future__ import annotations

import pytest
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.text import print_module
from lazytpu.ir.unary import ExpOp
from lazytpu.passes import canonicalize
from lazytpu.passes.patterns.rewriting import Pattern, replace
from lazytpu.passes.pipeline import PassError, run_pipeline
from tests.passes.modules import parse_main, rewrites

LINEAR = """
    %0 = lazytpu.transpose %w [1, 0] : (tensor<16x4xf32>) -> tensor<4x16xf32>
    %1 = lazytpu.dot_general %x, %0 lhs_contract = [1] rhs_contract = [0] precision = highest {attributes}
         : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32> loc("train.py":41:0)
    func.return %1 : tensor<8x16xf32>"""
ARGUMENTS = "%x : tensor<8x4xf32>, %w : tensor<16x4xf32>"


def test_rewritten_op_keeps_its_source_line() -> None:
    rewritten = parse_main(ARGUMENTS, LINEAR.format(attributes=""))
    run_pipeline(rewritten, passes="canonicalize", verify=True)
    (line,) = [line for line in print_module(rewritten).splitlines() if "dot_general" in line]
    assert "rhs_contract = [1]" in line
    assert line.endswith('loc("train.py":41:0)')


def test_rewritten_op_keeps_its_recompute_mark() -> None:
    rewritten = parse_main(ARGUMENTS, LINEAR.format(attributes="{lazytpu.recompute = 3 : i64}"))
    run_pipeline(rewritten, passes="canonicalize", verify=True)
    (line,) = [line for line in print_module(rewritten).splitlines() if "dot_general" in line]
    assert "rhs_contract = [1]" in line
    assert "lazytpu.recompute = 3 : i64" in line


def test_patterns_feed_each_other() -> None:
    """A mean over one row and a scale by 1: the layers of moves vanish."""
    rewrites(
        "canonicalize",
        "%x : tensor<1x4xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<1x4xf32>) -> tensor<4x1xf32>
        %1 = lazytpu.reshape %0 : (tensor<4x1xf32>) -> tensor<2x2xf32>
        %2 = lazytpu.constant 1.0 : tensor<f32>
        %3 = lazytpu.broadcast_in_dim %2 dims = [] : (tensor<f32>) -> tensor<2x2xf32>
        %4 = lazytpu.mul %1, %3 : tensor<2x2xf32>
        %5 = lazytpu.reshape %4 : (tensor<2x2xf32>) -> tensor<1x4xf32>
        func.return %5 : tensor<1x4xf32>""",
        "func.return %x : tensor<1x4xf32>",
    )


def test_every_pattern_is_for_an_op_of_the_dialect() -> None:
    table = canonicalize.patterns()
    assert all(kind.name.startswith("lazytpu.") for kind in table)
    assert all(isinstance(pattern, Pattern) for patterns in table.values() for pattern in patterns)


def test_failing_pattern_names_the_op_and_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Pattern):
        def match_and_rewrite(self, op: ExpOp, rewriter: PatternRewriter, /) -> None:
            raise KeyError("lost")

    monkeypatch.setattr(canonicalize, "patterns", lambda: {ExpOp: (Broken(),)})
    body = '%0 = lazytpu.exp %x : tensor<4xf32> loc("train.py":7:0)\nfunc.return %0 : tensor<4xf32>'
    with pytest.raises(PassError) as caught:
        run_pipeline(parse_main("%x : tensor<4xf32>", body), passes="canonicalize", verify=False)
    message = str(caught.value)
    assert "pass 'canonicalize' failed with KeyError: 'lost'" in message
    assert "lazytpu.exp (tensor<4xf32>)" in message
    assert "train.py:7" in message
    assert "lazytpu-opt -p canonicalize FILE" in message


def test_pattern_that_changes_a_type_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Pattern):
        def match_and_rewrite(self, op: ExpOp, rewriter: PatternRewriter, /) -> None:
            replace(op, rewriter, lambda b: b.convert(op.operands[0], "f64"))

    monkeypatch.setattr(canonicalize, "patterns", lambda: {ExpOp: (Broken(),)})
    body = "%0 = lazytpu.exp %x : tensor<4xf32>\nfunc.return %0 : tensor<4xf32>"
    with pytest.raises(PassError, match="of type tensor<4xf32> by a value of type tensor<4xf64>"):
        run_pipeline(parse_main("%x : tensor<4xf32>", body), passes="canonicalize", verify=False)
