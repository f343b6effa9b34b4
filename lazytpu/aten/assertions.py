"""Assertions of values: they are looked at on the device, and raise where a value that depends on them is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@rule("aten._assert_async.default", "aten._assert_async.msg")
def assert_async(
    b: Builder, self: SSAValue, assert_msg: str = "Expected Tensor with single nonzero value, but got zero"
) -> tuple[()]:
    """Compute nothing, and raise RuntimeError where `self`, of one element, is 0."""
    b.check(b.compare("NE", self, full(b, 0, self)), assert_msg or "Assertion is failed", error="RuntimeError")
    return ()
