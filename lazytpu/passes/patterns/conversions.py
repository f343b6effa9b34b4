"""Patterns of convert and bitcast_convert."""

from __future__ import annotations

from xdsl.pattern_rewriter import PatternRewriter, op_type_rewrite_pattern

from lazytpu.ir.pointwise import BitcastConvertOp, ConvertOp
from lazytpu.ir.types import FLOATS8, bitwidth, dtype_of, is_complex, is_float, is_unsigned
from lazytpu.passes.patterns.rewriting import Pattern, Table, defined_by, replace

# Bits of the significand (including the hidden bit) and of the exponent.
FLOAT_FORMAT = {
    "f8e4m3fn": (4, 4),
    "f8e5m2": (3, 5),
    "f8e4m3fnuz": (4, 4),
    "f8e5m2fnuz": (3, 5),
    "f8e8m0fnu": (1, 8),
    "f16": (11, 5),
    "bf16": (8, 8),
    "f32": (24, 8),
    "f64": (53, 11),
}
PARTS = {"c64": "f32", "c128": "f64"}


def is_lossless(source: str, target: str) -> bool:
    """Whether every number of dtype `source`, including infinities and NaN, is a number of dtype `target`."""
    if source == target:
        return True
    if target in FLOATS8:  # some have no infinity, and one has no 0
        return False
    if source == "i1":
        return True
    if target == "i1":
        return False
    if is_complex(source):
        return is_complex(target) and is_lossless(PARTS[source], PARTS[target])
    if is_complex(target):
        return is_lossless(source, PARTS[target])
    if is_float(source):
        if not is_float(target):
            return False
        return all(a <= b for a, b in zip(FLOAT_FORMAT[source], FLOAT_FORMAT[target], strict=True))
    magnitude = bitwidth(source) - (not is_unsigned(source))
    if is_float(target):
        # The largest magnitude is 2^magnitude; f16 stays below 2^16.
        significand, exponent = FLOAT_FORMAT[target]
        return magnitude <= significand and magnitude < 2 ** (exponent - 1)
    if is_unsigned(target):
        return is_unsigned(source) and bitwidth(source) <= bitwidth(target)
    return magnitude < bitwidth(target)


def _kind(dtype: str) -> str:
    return "float" if is_float(dtype) else "complex" if is_complex(dtype) else "integer"


def composes(source: str, middle: str, target: str) -> bool:
    """Whether convert(convert(x, middle), target) is convert(x, target) for every x of dtype `source`.

    The conversion to `middle` must be lossless. Then the two agree wherever a conversion depends on the number alone:
    to floats, complex numbers and i1, and from i1 (0 and 1 fit everywhere). For an integer target, source and middle
    must also be of one kind, because integers wrap around where floats saturate.
    """
    if not is_lossless(source, middle) or (source == target and source in FLOATS8):  # the bits of NaN change on the way
        return False
    by_number = target == "i1" or source == "i1" or _kind(target) != "integer"
    return by_number or _kind(source) == _kind(middle) or source == target


class ConvertToSame(Pattern):
    """convert(x) -> x when x has the result's dtype."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvertOp | BitcastConvertOp, rewriter: PatternRewriter, /) -> None:
        if op.operands[0].type == op.results[0].type:
            rewriter.replace(op, (), (op.operands[0],))


class ConvertTwice(Pattern):
    """convert(convert(x: A -> B): B -> C) -> convert(x: A -> C) if A -> B is lossless; x itself if C is A.

    bf16 -> f32 -> bf16 is removed; f32 -> bf16 -> f32 rounds, and stays."""

    MADE_BY = frozenset((ConvertOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ConvertOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], ConvertOp)
        if inner is None:
            return
        x = inner.operands[0]
        target = dtype_of(op.results[0])
        if composes(dtype_of(x), dtype_of(inner.results[0]), target):
            replace(op, rewriter, lambda b: b.convert(x, target))


class BitcastThereAndBack(Pattern):
    """bitcast_convert(bitcast_convert(x)) -> x if x has the result's type."""

    MADE_BY = frozenset((BitcastConvertOp,))

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: BitcastConvertOp, rewriter: PatternRewriter, /) -> None:
        inner = defined_by(op.operands[0], BitcastConvertOp)
        if inner is not None and inner.operands[0].type == op.results[0].type:
            rewriter.replace(op, (), (inner.operands[0],))


PATTERNS: Table = {
    ConvertOp: (ConvertToSame(), ConvertTwice()),
    BitcastConvertOp: (ConvertToSame(), BitcastThereAndBack()),
}
