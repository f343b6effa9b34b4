"""Modules round-trip through text, for every op of the dialect."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    ArrayAttr,
    CallSiteLoc,
    DictionaryAttr,
    FileLineColLoc,
    FloatAttr,
    FusedLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    NameLoc,
    NoneAttr,
    StringAttr,
    UnitAttr,
    f32,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import ParseError, VerifyException

from lazytpu.ir.builder import Builder
from lazytpu.ir.dialect import OPS
from lazytpu.ir.text import hint, parse_module, print_module
from lazytpu.ir.types import tensor_type
from tests.ir.samples import SAMPLES, Sample, module_of

ALL = [(name, number, sample) for name, samples in SAMPLES.items() for number, sample in enumerate(samples)]


def main_of(module: ModuleOp) -> FuncOp:
    function = module.ops.first
    assert isinstance(function, FuncOp)
    return function


def check_round_trip(module: ModuleOp) -> str:
    module.verify()
    text = print_module(module)
    parsed = parse_module(text)
    parsed.verify()
    assert print_module(parsed) == text
    assert parsed.is_structurally_equivalent(module)
    return text


def lines_of(build, *operands: str) -> list[str]:
    """The lines inside main, without the return."""
    return [line.strip() for line in print_module(module_of(build, *operands)).splitlines()[2:-3]]


def test_every_op_has_a_sample():
    assert SAMPLES.keys() == OPS.keys(), "tests/ir/samples.py needs a use of every op"


@pytest.mark.parametrize(("name", "sample"), [(n, s) for n, _, s in ALL], ids=[f"{n}-{i}" for n, i, _ in ALL])
def test_round_trip(name: str, sample: Sample):
    text = check_round_trip(sample.module())
    assert f"lazytpu.{name} " in text


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_op_is_one_line_in_the_pretty_form(name: str):
    for sample in SAMPLES[name]:
        module = sample.module()
        regions = sum(len(op.regions) for op in module.walk()) - 2  # each has a line that closes it
        ops = sum(1 for _ in main_of(module).body.walk())
        assert len(print_module(module).splitlines()) == ops + 4 + regions
        assert '"lazytpu.' not in print_module(module)


def test_text_of_ops():
    def build(b: Builder, x, w, i):
        y = b.exp(b.add(x, x))
        z = b.transpose(y, (1, 0))
        b.dot_general(z, w, (), (), (1,), (0,))
        b.mul(y, b.constant(float("-inf"), "f32", (2, 3)))
        b.compare("LT", x, x)
        b.reduce("max", x, (1,))
        b.array([1, 2], "i64")
        b.sort([x, i], 1)
        b.template("fft", [x], [("c64", (2,))], norm="ortho", n=2)

    assert lines_of(build, "f32[2,3]", "f32[2,4]", "i64[2,3]") == [
        "%3 = lazytpu.add %0, %0 : tensor<2x3xf32>",
        "%4 = lazytpu.exp %3 : tensor<2x3xf32>",
        "%5 = lazytpu.transpose %4 [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>",
        "%6 = lazytpu.dot_general %5, %1 lhs_contract = [1] rhs_contract = [0] precision = highest : "
        "(tensor<3x2xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>",
        "%7 = lazytpu.constant -inf : tensor<2x3xf32>",
        "%8 = lazytpu.mul %4, %7 : tensor<2x3xf32>",
        "%9 = lazytpu.compare LT %0, %0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>",
        "%10 = lazytpu.reduce max %0 dims = [1] : (tensor<2x3xf32>) -> tensor<2xf32>",
        "%11 = lazytpu.dense_constant [1, 2] : tensor<2xi64>",
        "%12, %13 = lazytpu.sort %0, %2 dim = 1 : "
        "(tensor<2x3xf32>, tensor<2x3xi64>) -> (tensor<2x3xf32>, tensor<2x3xi64>)",
        '%14 = lazytpu.template fft %0 params = {norm = "ortho", n = 2} : (tensor<2x3xf32>) -> tensor<2xc64>'.replace(
            "xc64", "xcomplex<f32>"
        ),
    ]


def test_text_of_regions():
    def build(b: Builder, c, x, y):
        with b.at(PLACE):
            b.if_(c, lambda b, x: b.neg(x), lambda b, x: b.add(x, y), [x])
        b.while_([x], lambda b, x: b.reduce("and", b.compare("LT", x, y), (0,)), lambda b, x: b.add(x, y))

    place = r' loc("a \22b\22/train.py":41:0)'
    assert lines_of(build, "i1[]", "f32[2]", "f32[2]") == [
        "%3 = lazytpu.if %0, %1, %2 : (tensor<i1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32> then(%4, %5) {",
        f"%6 = lazytpu.neg %4 : tensor<2xf32>{place}",
        f"lazytpu.yield %6 : tensor<2xf32>{place}",
        "} else(%7, %8) {",
        f"%9 = lazytpu.add %7, %8 : tensor<2xf32>{place}",
        f"lazytpu.yield %9 : tensor<2xf32>{place}",
        f"}}{place}",
        "%4 = lazytpu.while %1, %2 carried = 1 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32> while(%5, %6) {",
        "%7 = lazytpu.compare LT %5, %6 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>",
        "%8 = lazytpu.reduce and %7 dims = [0] : (tensor<2xi1>) -> tensor<i1>",
        "lazytpu.yield %8 : tensor<i1>",
        "} do(%9, %10) {",
        "%11 = lazytpu.add %9, %10 : tensor<2xf32>",
        "lazytpu.yield %11 : tensor<2xf32>",
        "}",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("then(%1) {\nlazytpu.yield %1 : tensor<i1>\n}", "Expected 'else'"),
        ("else(%1) {}", "Expected 'then'"),
        ("then(%1, %2) {}", "the region 'then' has 2 arguments; expected 1"),
        ("then(%1) {\nlazytpu.yield %c : tensor<i1>\n} else(%1) {\n}", "values used but not defined: [%c]"),
    ],
)
def test_malformed_regions_are_refused(text: str, message: str):
    op = f"%0 = lazytpu.if %c, %c : (tensor<i1>, tensor<i1>) -> tensor<i1> {text}"
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse_module(f"builtin.module {{\nfunc.func @main(%c : tensor<i1>) {{\n{op}\nfunc.return\n}}\n}}")
    assert message in str(caught.value)


PLACE = FileLineColLoc(StringAttr('a "b"/train.py'), IntAttr(41), IntAttr(0))


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (UNKNOWN_LOC, ""),
        (PLACE, r' loc("a \22b\22/train.py":41:0)'),
        (NameLoc(StringAttr("backward"), PLACE), r' loc("backward"("a \22b\22/train.py":41:0))'),
        (NameLoc(StringAttr("é"), NoneAttr()), ' loc("é")'),
        (CallSiteLoc(PLACE, UNKNOWN_LOC), r' loc(callsite("a \22b\22/train.py":41:0 at unknown))'),
        (FusedLoc((PLACE, UNKNOWN_LOC), NoneAttr()), r' loc(fused["a \22b\22/train.py":41:0, unknown])'),
    ],
)
def test_locations_of_ops(location: LocationAttr, text: str):
    def build(b: Builder, x):
        with b.at(location):
            b.neg(x)

    module = module_of(build, "f32[2]")
    assert f"%1 = lazytpu.neg %0 : tensor<2xf32>{text}\n" in check_round_trip(module)
    first = main_of(parse_module(print_module(module))).body.block.first_op
    assert first is not None
    assert first.location == location


def test_locations_of_arguments_functions_and_modules():
    module = module_of(lambda b, x: b.neg(x), "f32[2]")
    main_of(module).args[0].location = PLACE
    module.location = PLACE
    text = check_round_trip(module)
    assert r'(%0: tensor<2xf32> loc("a \22b\22/train.py":41:0))' in text
    parsed = parse_module(text)
    assert parsed.location == PLACE
    assert main_of(parsed).args[0].location == PLACE


def test_arguments_are_printed_by_name():
    module = module_of(lambda b, x, y, z: b.add(x, y), "f32[2]", "f32[2]", "f32[2]")
    names = ("layers.0.weight", "input 3", "input 3")
    attributes = [DictionaryAttr({"lazytpu.name": StringAttr(n), "lazytpu.donate": UnitAttr()}) for n in names]
    main_of(module).arg_attrs = ArrayAttr(attributes)
    text = check_round_trip(module)
    assert '%layers_0_weight: tensor<2xf32> {lazytpu.name = "layers.0.weight", lazytpu.donate}' in text
    assert "%0 = lazytpu.add %layers_0_weight, %input3 : tensor<2xf32>" in text
    assert "%input3_1" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layers.0.weight", "layers_0_weight"),
        ("layers.0", "layers0"),
        ("a.1.2", "a12"),
        ("input 3", "input3"),
        ("0.weight", "_0_weight"),
        ("weight", "weight"),
        ("gewicht_ß", "gewicht"),
        ("", None),
        ("..", None),
        ("7", "_7"),
    ],
)
def test_hint(name: str, expected: str | None):
    assert hint(name) == expected


def test_name_hints_of_results_survive():
    def build(b: Builder, x):
        for value in (b.neg(x), b.exp(x)):
            value.name_hint = "loss"

    text = check_round_trip(module_of(build, "f32[2]"))
    assert "%loss = lazytpu.neg %0" in text
    assert "%loss_1 = lazytpu.exp %0" in text


def test_attributes_of_ops_survive():
    module = module_of(lambda b, x: b.reduce("add", x, (0,)), "f32[2]")
    first = main_of(module).body.block.first_op
    assert first is not None
    first.attributes["layout"] = StringAttr("row")
    first.attributes["bound"] = FloatAttr(float("-inf"), f32)
    assert 'dims = [0] {layout = "row", bound = 0xff800000 : f32} : (' in check_round_trip(module)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("lazytpu.exp %x dims = [1] : tensor<2xf32>", "lazytpu.exp has no further property dims"),
        ("lazytpu.reduce add %x : (tensor<2xf32>) -> tensor<f32>", "lazytpu.reduce needs the property dims"),
        ("lazytpu.reduce add %x dims = [0] dims = [0] : (tensor<2xf32>) -> tensor<f32>", "no further property dims"),
        ("lazytpu.constant 0.5 : tensor<2xi32>", "0.5 is not an integer; expected one for i32"),
        ("lazytpu.constant true : tensor<2xi32>", "True is not a number of dtype i32"),
        ("lazytpu.constant 1 : tensor<2xi1>", "1 is not a number of dtype i1"),
        ("lazytpu.constant 256 : tensor<2xui8>", "256 does not fit ui8"),
        ("lazytpu.constant 1.0 : tensor<2xcomplex<f32>>", "expected a pair"),
        ("lazytpu.constant 0x1FFFFFFFF : tensor<2xf32>", "8589934591 is not a pattern of the 32 bits of f32"),
        ("lazytpu.constant 1.0 : f32", "lazytpu.constant expected tensors, got f32"),
        ("lazytpu.add %x : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>", "expected 2 operand types but had 1"),
        ("lazytpu.exponential %x : tensor<2xf32>", "lazytpu.exponential is not registered"),
    ],
)
def test_parse_errors_name_the_fault(op: str, message: str):
    text = f"func.func @main(%x : tensor<2xf32>) {{\n  %y = {op}\n  func.return\n}}"
    with pytest.raises(ParseError) as caught:
        parse_module(text, "step.mlir")
    assert message in str(caught.value)
    assert "step.mlir:2:" in str(caught.value)


def test_generic_form_is_parsed():
    text = """func.func @main(%x : tensor<2xf32>) {
      %y = "lazytpu.reduce"(%x) <{kind = "add", dims = array<i64: 0>}> : (tensor<2xf32>) -> tensor<f32>
      func.return
    }"""
    module = parse_module(text)
    module.verify()
    assert "lazytpu.reduce add %x dims = [0] : (tensor<2xf32>) -> tensor<f32>" in print_module(module)


@pytest.mark.parametrize(
    ("name", "properties", "text"),
    [
        ("constant", {}, "lazytpu.constant : tensor<i8>"),
        ("constant", {"value": StringAttr("x")}, 'lazytpu.constant "x" : tensor<i8>'),
        ("dense_constant", {}, "lazytpu.dense_constant : tensor<i8>"),
        ("dense_constant", {"data": StringAttr("zz")}, 'lazytpu.dense_constant "zz" : tensor<i8>'),
        ("template", {}, "lazytpu.template : () -> tensor<i8>"),
        ("iota", {"dim": StringAttr("x")}, "lazytpu.iota dim = x : tensor<i8>"),
    ],
)
def test_invalid_ops_are_printed_too(name: str, properties: dict[str, Attribute], text: str):
    op = OPS[name].create(result_types=[tensor_type("i8", ())], properties=properties)
    with pytest.raises(VerifyException):
        op.verify()
    assert text in print_module(module_of(lambda b: b.block.add_op(op)))
