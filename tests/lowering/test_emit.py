"""The contents of a module that emit preserves, and its errors."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, IntegerAttr, ModuleOp, NameLoc, StringAttr, UnitAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.irdl import irdl_op_definition

from lazytpu.ir.base import TensorOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.types import tensor_type
from lazytpu.lowering import LoweringError, emit, stablehlo_text
from lazytpu.lowering.rules import RULES, lowers
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.signature import signature
from tests.lowering.harness import module_of


def location(line):
    return FileLineColLoc(StringAttr("train.py"), IntAttr(line), IntAttr(0))


@irdl_op_definition
class UnknownOp(TensorOp):
    """An op of another dialect."""

    name = "test.unknown"


def test_every_op_of_the_dialect_has_a_rule():
    assert set(RULES) == set(OPS.values())


def test_op_has_one_rule():
    with pytest.raises(ValueError, match=r"lazytpu.iota has two lowering rules: iota and .*other"):

        @lowers(OPS["iota"])
        def other(e, op): ...


def test_failing_op_in_a_region_is_named(monkeypatch):
    monkeypatch.delitem(RULES, OPS["neg"])

    def build(b, c, x):
        def then(b):
            with b.at(location(42)):
                return b.neg(x)

        with b.at(location(41)):
            return b.if_(c, then, lambda b: x)

    with pytest.raises(NotImplementedError, match=r"lazytpu.neg at train.py:42 has no lowering rule"):
        emit(module_of(build, ("i1", ()), ("f32", (4,))))


def test_lines_of_regions_are_kept():
    def build(b, c, x):
        def then(b):
            with b.at(location(42)):
                return b.neg(x)

        with b.at(location(41)):
            return b.if_(c, then, lambda b: x)

    text = stablehlo_text(emit(module_of(build, ("i1", ()), ("f32", (4,)))), locations=True)
    assert '"train.py":41' in text
    assert '"train.py":42' in text


def test_names_lines_and_donation_are_kept():
    def build(b, x, w):
        with b.at(location(41)):
            y = b.add(x, w)
        with b.at(NameLoc(StringAttr("backward"), location(41))):
            return [b.neg(y), y]

    module = module_of(
        build,
        ("f32", (4,)),
        ("f32", (4,)),
        arguments=[
            {"lazytpu.name": StringAttr("input 0"), "lazytpu.donate": UnitAttr()},
            {"lazytpu.name": StringAttr("layers.0.weight"), "lazytpu.alias": IntegerAttr(1, i64)},
        ],
        results=[{}, {"lazytpu.name": StringAttr("layers.0.weight")}],
    )
    emitted = emit(module, name="step")
    plain, full = stablehlo_text(emitted), stablehlo_text(emitted, locations=True)
    assert "module @step" in plain
    assert '%layers.0.weight: tensor<4xf32> {lazytpu.name = "layers.0.weight", tf.aliasing_output = 1 : i32}' in plain
    assert "jax.buffer_donor = true" in plain
    assert '(tensor<4xf32>, tensor<4xf32> {lazytpu.name = "layers.0.weight"})' in plain
    assert '"train.py":41' not in plain
    assert '"train.py":41' in full
    assert '"backward"' in full
    assert signature(emitted).donated == (0, 1)


def test_text_parses_back():
    module = module_of(lambda b, x: [b.random_bits(x, x, (3,)), b.constant(float("-inf"), "f32", (2,))], ("ui64", ()))
    text = stablehlo_text(emit(module))
    with mlir_context():
        again = stablehlo_text(ir.Module.parse(text))
    assert re.sub(r"%\w+", "%", again) == re.sub(r"%\w+", "%", text), "but for the names of values"


def test_large_tables_can_be_elided():
    import numpy as np

    module = module_of(lambda b: b.array(np.arange(100), "i64"))
    assert "99" in stablehlo_text(emit(module))
    assert "99" not in stablehlo_text(emit(module), elide_above=10)


def test_op_without_a_rule_gives_advice():
    def build(b, x):
        with b.at(location(7)):
            return b.op(UnknownOp, [], [tensor_type("f32", ())]).results[0]

    function = FuncOp("main", ([], [tensor_type("f32", ())]))
    op = UnknownOp.create(result_types=[tensor_type("f32", ())], location=location(7))
    function.body.block.add_ops([op, ReturnOp(op.results[0])])
    with pytest.raises(
        NotImplementedError, match=r"test.unknown at train.py:7 has no lowering rule.*@lowers\(UnknownOp\)"
    ):
        emit(ModuleOp([function]))


def test_failing_rule_names_the_op_and_line():
    def build(b, x):
        with b.at(location(9)):
            return b.template("no_such_template", [x], [("f32", (2,))])

    with pytest.raises(LoweringError, match=r"lazytpu.template at train.py:9: there is no template 'no_such_template'"):
        emit(module_of(build, ("f32", (2,))))


def test_invalid_stablehlo_is_a_lowering_error():
    from lazytpu.ir.constants import IotaOp

    good = RULES[IotaOp]
    RULES[IotaOp] = lambda e, op: e.create("stablehlo.iota", [], e.type(op.result_type()))
    try:
        with pytest.raises(LoweringError, match="iota_dimension"):
            emit(module_of(lambda b: b.iota("f32", (2,), 0)))
    finally:
        RULES[IotaOp] = good


def test_module_has_one_public_function():
    with pytest.raises(LoweringError, match="a function @main and private functions"):
        emit(ModuleOp([]))


def test_entry_is_a_function_of_the_module():
    module = module_of(lambda b, x: x, ("f32", ()))
    with pytest.raises(LoweringError, match="a module with a function @step; it has main"):
        emit(module, entry="step")


def test_alias_must_be_a_result():
    module = module_of(lambda b, x: x, ("f32", ()), arguments=[{"lazytpu.alias": IntegerAttr(3, i64)}])
    with pytest.raises(LoweringError, match="@main has 1 results"):
        emit(module)


def test_value_used_before_its_definition_is_reported():
    module = module_of(lambda b, x: b.exp(b.neg(x)), ("f32", (4,)))
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    neg, exp, _ = function.body.block.ops
    exp.detach()
    function.body.block.insert_op_before(exp, neg)
    with pytest.raises(LoweringError, match=r"an op uses a value of lazytpu\.neg before its definition"):
        emit(module)
