"""Branches and loops of the builder: captured values, checks, and refusals."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.control import IfOp, WhileOp
from lazytpu.ir.dominance import verify_order
from lazytpu.ir.text import print_module
from lazytpu.ir.types import tensor_type
from tests.ir.samples import parse_type


def start(*operands: str) -> tuple[Builder, list[SSAValue]]:
    block = Block(arg_types=[parse_type(t) for t in operands])
    return Builder(block), list(block.args)


def finished(b: Builder, *results: SSAValue) -> str:
    """Return the text of the module, after verifying it."""
    b.block.add_op(ReturnOp(*results))
    types = [a.type for a in b.block.args], [v.type for v in results]
    module = ModuleOp([FuncOp("main", types, Region(b.block))])
    module.verify()
    verify_order(module)
    return print_module(module)


def test_values_from_outside_become_operands_once():
    b, (c, x, y) = start("i1[]", "f32[2]", "f32[2]")
    (z,) = b.if_(c, lambda b: b.add(b.mul(x, y), x), lambda b: y)
    assert isinstance(z.owner, IfOp)
    assert list(z.owner.operands) == [c, x, y]
    assert z.owner.regions[1].block.args[1] is z.owner.yielded(1)[0]
    finished(b, z)


def test_inner_regions_capture_through_outer_ones():
    b, (c, x, y) = start("i1[]", "f32[2]", "f32[2]")

    def then(b: Builder) -> list[SSAValue]:
        return b.repeat(3, [x], lambda b, i, s: b.if_(c, lambda b: b.add(s, y), lambda b: s))

    (z,) = b.if_(c, then, lambda b: x)
    finished(b, z)
    assert isinstance(z.owner, IfOp)
    assert {*z.owner.operands} == {c, x, y}


def test_constants_from_outside_are_repeated_inside():
    b, (c, x) = start("i1[]", "f32[2]")
    constant = b.constant(1, "f32", (2,))
    (z,) = b.if_(c, lambda b: b.add(b.add(x, constant), constant), lambda b: constant)
    assert isinstance(z.owner, IfOp)
    assert list(z.owner.operands) == [c, x]
    assert finished(b, z).count("lazytpu.constant") == 3


def test_numbers_of_packs_are_read_outside():
    b, (c, pack) = start("i1[]", "f32[4]")
    (z,) = b.if_(
        c, lambda b: b.if_(c, lambda b: b.number(pack, 2), lambda b: b.number(pack, 1)), lambda b: b.number(pack, 0)
    )
    assert isinstance(z.owner, IfOp)
    assert pack not in z.owner.operands
    assert [op.name for op in b.block.ops] == ["lazytpu.number"] * 3 + ["lazytpu.if"]
    finished(b, z)


def _positive(b: Builder, x: SSAValue) -> SSAValue:
    b.check(b.compare("GT", x, b.constant(0, "f32", (2,))), "not positive", "ValueError")
    return x


def test_checks_of_a_branch_leave_it_as_one_more_result():
    b, (c, x) = start("i1[]", "f32[2]")
    results = b.if_(c, lambda b: _positive(b, x), lambda b: b.neg(_positive(b, b.neg(x))))
    assert len(results) == 1
    assert [(message, error) for _, message, error in b.checks] == [("not positive", "ValueError")] * 2
    (first, *_), (second, *_) = b.checks
    op = first.owner
    assert isinstance(op, IfOp)
    assert second.owner is op
    assert len(op.results) == 3
    finished(b, *results, first, second)


def test_checks_of_a_loop_accumulate():
    b, (x, y) = start("f32[2]", "f32[2]")
    results = b.repeat(3, [x], lambda b, i, s: b.sub(_positive(b, s), y))
    ((passed, *_),) = b.checks
    assert isinstance(passed.owner, WhileOp)
    assert passed.owner.count == 3
    text = finished(b, *results, passed)
    assert "lazytpu.and" in text


def test_checks_of_a_condition_run_before_the_loop_and_in_its_body():
    b, (x, y) = start("f32[2]", "f32[2]")

    def goes(b: Builder, s: SSAValue) -> SSAValue:
        return b.reduce("and", b.compare("LT", _positive(b, s), y), (0,))

    results = b.while_([x], goes, lambda b, s: b.add(s, y))
    assert len(results) == len(b.block.args) - 1
    assert len(b.checks) == 2
    before, within = (ok for ok, _, _ in b.checks)
    assert before.owner.name == "lazytpu.reduce"  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(within.owner, WhileOp)
    assert len(within.owner.regions[0].block.ops) == 1, "the condition is carried"
    finished(b, *results, before, within)


def test_checks_leave_nested_regions():
    b, (c, x) = start("i1[]", "f32[2]")
    results = b.if_(c, lambda b: b.repeat(3, [x], lambda b, i, s: _positive(b, s)), lambda b: x)
    ((passed, *_),) = b.checks
    assert isinstance(passed.owner, IfOp)
    finished(b, *results, passed)


def test_scan_stacks_outputs():
    b, (x, rows) = start("f32[2]", "f32[5,2]")
    (last,), (sums,) = b.scan([x], [rows], lambda b, s, row: (b.add(s, row), b.reduce("add", row, (0,))), 5)
    assert (last.type, sums.type) == (x.type, tensor_type("f32", (5,)))
    finished(b, last, sums)


def test_scan_over_zero_rows():
    b, (x, rows) = start("f32[2]", "f32[0,2]")
    (last,), (kept,) = b.scan([x], [rows], lambda b, s, row: (b.add(s, row), row), 0)
    assert kept.type == tensor_type("f32", (0, 2))
    finished(b, last, kept)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, c, x, rows: b.if_(x, lambda b: x, lambda b: x), "a condition is a 0-d i1"),
        (
            lambda b, c, x, rows: b.if_(c, lambda b: x, lambda b: rows),
            "both regions yield the same types; got tensor<2x",
        ),
        (lambda b, c, x, rows: b.while_([x], lambda b, s: s, lambda b, s: s), "a condition is a 0-d i1"),
        (lambda b, c, x, rows: b.while_([x], lambda b, s: c, lambda b, s: (s, s)), "the types of the carried values"),
        (lambda b, c, x, rows: b.scan([x], [rows], lambda b, s, r: s, 4), r"lengths \[5\]; expected a first"),
        (lambda b, c, x, rows: b.scan([x], [rows], lambda b, s, r: (rows, r), 5), "the types of the carried values"),
    ],
)
def test_invalid_regions_are_refused(build, message: str):
    b, operands = start("i1[]", "f32[2]", "f32[5,2]")
    with pytest.raises(ValueError, match=message):
        build(b, *operands)
