"""Modules built with symbolic sizes, rebuilt at another bound."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import symbol
from lazytpu.ir.rebinding import rebuilt
from lazytpu.ir.symbolic import Derivation
from lazytpu.ir.text import print_module
from lazytpu.ir.types import canonical, tensor_type


def built(n: Any) -> ModuleOp:
    """Return a module with a size in types, limits, constants, a divisor and a template's parameter."""
    block = Block(arg_types=[tensor_type("f32", (n, 4)), tensor_type("i32", (n + 2,))])
    b, (x, pivots) = Builder(block), block.args
    part = b.slice(x, [1, 0], [n, 4]) if n > 3 else b.reverse(x, (0,))
    mean = b.mul(b.reduce("add", part, (0,)), b.constant(2 / n, "f32", (4,)))
    size = b.constant(n + 1, "i32")
    (order,) = b.template("pivots_to_permutation", [pivots], [("i32", (n + 2,))], size=n + 2)
    block.add_op(ReturnOp(mean, size, order))
    types = [argument.type for argument in block.args], [value.type for value in (mean, size, order)]
    module = ModuleOp([FuncOp("main", types, Region(block))])
    module.verify()
    return module


def test_module_rebuilt_at_another_bound_is_the_module_of_that_bound() -> None:
    with Derivation({"n": (4, 16)}) as derivation:
        module = built(derivation.size(symbol("n")))
    with Derivation({"n": (5, 9)}) as other:
        assert other.follows(derivation)
    copy = rebuilt(module, derivation, other.bound)
    assert print_module(copy) == print_module(built(9))
    assert print_module(module) == print_module(built(16)), "the original is unchanged"


def test_rebuilt_module_has_interned_types() -> None:
    with Derivation({"n": (4, 16)}) as derivation:
        module = built(derivation.size(symbol("n")))
    for bound in (9, 16):
        copy = rebuilt(module, derivation, {"n": bound})
        types = {id(result.type) for op in copy.walk() for result in op.results if op.name.startswith("lazytpu.")}
        assert id(tensor_type("f32", (bound - 1, 4))) in types
        assert types <= {id(canonical(value)) for op in copy.walk() for value in map(attrgetter("type"), op.results)}


def test_comparison_with_another_answer_keeps_a_module_from_being_rebuilt() -> None:
    with Derivation({"n": (2, 16)}) as derivation:
        built(derivation.size(symbol("n")))
    with Derivation({"n": (2, 3)}) as other:
        assert not other.follows(derivation)


def test_guard_of_the_original_is_a_guard_where_it_does_not_hold_everywhere() -> None:
    with Derivation({"n": (2, 16)}) as derivation:
        built(derivation.size(symbol("n")))
    assert [str(guard) for guard in derivation.guards] == ["-n+3 < 0"]
    with Derivation({"n": (2, 8)}) as other:
        assert other.follows(derivation)
        assert [str(guard) for guard in other.guards] == ["-n+3 < 0"]
    with Derivation({"n": (6, 8)}) as third:
        assert third.follows(derivation)
        assert not third.guards
