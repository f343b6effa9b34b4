"""Verification that skips ops which are known to be valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir import validity
from lazytpu.ir.constants import DenseConstantOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.shape import TransposeOp
from lazytpu.ir.sizes import SIZES
from lazytpu.ir.text import parse_module
from lazytpu.ir.types import int_array, tensor_type
from lazytpu.ir.unary import ExpOp
from lazytpu.ir.validity import verify
from tests.ir.refusals import REFUSED, REFUSED_REGIONS, Properties, make
from tests.ir.samples import SAMPLES
from tests.ir.test_agreement import AGREED, module
from tests.ir.test_agreement import REFUSED as REFUSED_COLLECTIVES

TEXT = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = lazytpu.exp %x : tensor<4x4xf32>
  %1 = lazytpu.transpose %0 [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = lazytpu.exp %1 : tensor<4x4xf32>
  func.return %2 : tensor<4x4xf32>
}
"""


def first(module: ModuleOp, kind: type[Operation]) -> Operation:
    return next(op for op in module.walk() if isinstance(op, kind))


@pytest.mark.parametrize("name", SAMPLES)
def test_valid_modules_are_accepted_twice(name: str) -> None:
    for sample in SAMPLES[name]:
        for _ in range(2):
            verify(sample.module())


@pytest.mark.parametrize(
    ("name", "operands", "results", "properties", "message"),
    REFUSED,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)],
)
def test_invalid_ops_are_refused_again(
    name: str, operands: str, results: str, properties: Properties, message: str
) -> None:
    for sample in SAMPLES.get(name, ()):
        verify(sample.module())
    for _ in range(2):
        ops = [make(name, operands, results, properties) for _ in range(2)]
        with pytest.raises(VerifyException) as caught:
            verify(ModuleOp(ops))
        assert message in str(caught.value)


@pytest.mark.parametrize(("name", "operands", "results", "properties", "regions", "message"), REFUSED_REGIONS)
def test_invalid_regions_are_refused(
    name: str, operands: str, results: str, properties: Properties, regions: Any, message: str
) -> None:
    with pytest.raises(VerifyException) as caught:
        verify(ModuleOp([make(name, operands, results, properties, *regions), parse_module(TEXT)]))
    assert message in str(caught.value)


def change_property(module: ModuleOp) -> None:
    first(module, TransposeOp).properties["permutation"] = int_array((1, 1))


def change_operand(module: ModuleOp) -> None:
    function = next(op for op in module.walk() if op.name == "func.func")
    wide = function.regions[0].block.insert_arg(tensor_type("f32", (4, 5)), 1)
    first(module, TransposeOp).operands[0] = wide


def change_annotation(module: ModuleOp) -> None:
    first(module, ExpOp).attributes[SIZES] = StringAttr("permutation: n")


def drop_property(module: ModuleOp) -> None:
    del first(module, TransposeOp).properties["permutation"]


def add_property(module: ModuleOp) -> None:
    first(module, ExpOp).properties["permutation"] = int_array((1, 0))


def end_with_another_op(module: ModuleOp) -> None:
    end = next(op for op in module.walk() if op.name == "func.return")
    end.detach()


@pytest.mark.parametrize(
    "change",
    [change_property, change_operand, change_annotation, drop_property, add_property, end_with_another_op],
)
def test_op_that_changed_is_verified_again(change: Callable[[ModuleOp], None]) -> None:
    valid = parse_module(TEXT)
    verify(valid)
    change(valid)
    with pytest.raises(VerifyException):
        verify(valid)


def test_empty_function_is_refused() -> None:
    empty = parse_module(TEXT)
    function = next(op for op in empty.walk() if op.name == "func.func")
    function.regions[0].detach_block(0)
    function.regions[0].add_block(Block(arg_types=[tensor_type("f32", (4, 4))]))
    with pytest.raises(VerifyException, match="empty block"):
        verify(empty)


@pytest.mark.parametrize("name", REFUSED_COLLECTIVES)
def test_collective_that_is_valid_elsewhere_is_refused(name: str) -> None:
    for agreed in AGREED.values():
        verify(parse_module(module(agreed)))
    text, where = REFUSED_COLLECTIVES[name]
    with pytest.raises(VerifyException, match=where):
        verify(parse_module(module(text)))


def test_equal_ops_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verify(parse_module(TEXT))
    verified = list[str]()
    monkeypatch.setattr(OPS["exp"], "verify_", lambda op: verified.append(op.name))
    monkeypatch.setattr(OPS["transpose"], "verify_", lambda op: verified.append(op.name))
    module = parse_module(TEXT)
    verify(module)
    assert len(verified) <= 1  # the first op has the type of the function's argument, an object of the parser


def test_tables_are_not_kept() -> None:
    for sample in SAMPLES["dense_constant"]:
        verify(sample.module())
    assert all(key[0] is not DenseConstantOp for key in validity._VALID)
