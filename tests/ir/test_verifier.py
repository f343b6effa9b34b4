"""The verifier rejects invalid ops with helpful messages."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, TensorType, f32
from xdsl.ir import Attribute, Block
from xdsl.traits import Commutative, is_side_effect_free
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.control import YieldOp
from lazytpu.ir.dialect import LAZYTPU, OPS
from lazytpu.ir.dominance import misplaced
from lazytpu.ir.types import tensor_type
from tests.ir.refusals import REFUSED, REFUSED_REGIONS, Properties, make
from tests.ir.samples import SAMPLES


@pytest.mark.parametrize(
    ("name", "operands", "results", "properties", "message"),
    REFUSED,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED)],
)
def test_invalid_ops_are_refused(name: str, operands: str, results: str, properties: Properties, message: str):
    with pytest.raises(VerifyException) as caught:
        make(name, operands, results, properties).verify()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "operands", "results", "properties", "regions", "message"),
    REFUSED_REGIONS,
    ids=[f"{r[0]}-{i}" for i, r in enumerate(REFUSED_REGIONS)],
)
def test_invalid_regions_refused(name: str, operands: str, results: str, properties: Properties, regions, message: str):
    with pytest.raises(VerifyException) as caught:
        make(name, operands, results, properties, *regions).verify()
    assert message in str(caught.value)


def test_regions_use_no_value_from_outside():
    (op,) = [op for op in SAMPLES["if"][0].module().walk() if op.name == "lazytpu.if"]
    negation = op.regions[0].block.first_op
    assert negation is not None
    negation.operands[0] = op.operands[1]
    with pytest.raises(VerifyException):
        op.verify()
    assert op.parent is not None
    function = op.parent.parent_op()
    assert function is not None
    assert "operand 0 of lazytpu.neg is an argument of another function or region" in str(misplaced(function))


def test_every_structured_op_has_a_refusal():
    elementwise = {name for name, op in OPS.items() if hasattr(op, "DOMAIN")}
    assert OPS.keys() - elementwise <= {row[0] for row in (*REFUSED, *REFUSED_REGIONS)}


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if hasattr(op, "DOMAIN")))
def test_elementwise_ops_refuse_dtypes_outside_their_domain(name: str):
    op = OPS[name]
    foreign = {"f32", "i32", "i1", "c64", "ui8"} - op.DOMAIN
    count = len(op.get_irdl_definition().operands)
    for dtype in foreign:
        with pytest.raises(VerifyException, match=f"expected (an operand|operands) of dtype .*; got {dtype}"):
            make(name, " ".join([f"{dtype}[2]"] * count), f"{dtype}[2]", {}).verify()


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(TensorType(f32, (-1,)), id="dynamic"),
        pytest.param(TensorType(TensorType(f32, ()), (2,)), id="tensor of tensors"),
        pytest.param(f32, id="scalar"),
    ],
)
def test_operands_are_static_tensors(foreign: Attribute):
    op = OPS["neg"].create(operands=Block(arg_types=[foreign]).args, result_types=[foreign])
    with pytest.raises(VerifyException):
        op.verify()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"kind": "add", "dims": ArrayAttr([IntegerAttr(0, 64)])}, "should be of base attribute array"),
        ({"kind": IntegerAttr(0, 64), "dims": (0,)}, "should be of base attribute string"),
        ({"kind": "add", "dims": (0,), "dim": 0}, "property 'dim' is not defined by the operation"),
    ],
)
def test_properties_have_their_kind(properties: Properties, message: str):
    with pytest.raises(VerifyException) as caught:
        make("reduce", "f32[2]", "f32[]", properties).verify()
    assert message in str(caught.value)


def test_all_ops_are_pure_and_symmetric_ops_commutative():
    commutative = {name for name, op in OPS.items() if op.has_trait(Commutative)}
    assert commutative == {"add", "mul", "and", "or", "xor"}
    for samples in SAMPLES.values():
        for op in samples[0].module().walk():
            assert not op.name.startswith("lazytpu.") or isinstance(op, YieldOp) or is_side_effect_free(op)


def test_the_dialect_holds_every_op_class_once():
    assert LAZYTPU.name == "lazytpu"
    assert len(list(LAZYTPU.operations)) == len(OPS) + 1  # besides the terminator of regions
    assert YieldOp in LAZYTPU.operations
    for name, op in OPS.items():
        assert op.name == f"lazytpu.{name}"
        assert op.__name__ == "".join(word.capitalize() for word in name.split("_")) + "Op"
        assert op.__doc__
    assert tensor_type("f32", ()) == tensor_type("f32", [])
