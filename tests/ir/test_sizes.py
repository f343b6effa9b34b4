"""The annotations of sized programs."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import symbol
from lazytpu.ir.sizes import SIZES, SYMBOLS, set_sizes, set_symbols, sizes_of, symbols_of
from lazytpu.ir.text import parse_module, print_module
from tests.ir.samples import module_of


def test_symbols_are_kept_in_order() -> None:
    module = module_of(lambda b, x: b.neg(x), "f32[4,8]")
    assert symbols_of(module) == {}
    set_symbols(module, {"n": (1, 8), "b": (0, 4)})
    again = parse_module(print_module(module))
    assert list(symbols_of(again).items()) == [("n", (1, 8)), ("b", (0, 4))]
    set_symbols(module, {})
    assert SYMBOLS not in module.attributes


@pytest.mark.parametrize("text", ["n", "n 1", "n 4..3", "n 1..2, n 1..3", "1..2"])
def test_malformed_symbols(text: str) -> None:
    module = ModuleOp([])
    module.attributes[SYMBOLS] = StringAttr(text)
    with pytest.raises(ValueError, match=r'expected each symbol once, .* as in "n 1\.\.32"'):
        symbols_of(module)


def test_sizes_of_an_op_read_back() -> None:
    n = symbol("n")
    ops: list = []

    def build(b: Builder, x) -> None:
        ops.append(b.slice(x, (0, 0), (4, 7)).owner)
        set_sizes(ops[0], {"limits": [None, n - 1], "result": [4, n - 1]})

    module = module_of(build, "f32[4,8]")
    text = print_module(module)
    assert '{lazytpu.sizes = "limits: _ n-1; result: 4 n-1"}' in text
    again = next(op for op in parse_module(text).walk() if op.name == "lazytpu.slice")
    sizes = sizes_of(again)
    assert sizes["limits"] == [None, n - 1]
    assert [str(size) for size in sizes["result"]] == ["4", "n-1"]


def test_malformed_sizes() -> None:
    module = module_of(lambda b, x: b.neg(x), "f32[4,8]")
    op = next(op for op in module.walk() if op.name == "lazytpu.neg")
    assert sizes_of(op) == {}
    op.attributes[SIZES] = StringAttr("4 n")
    with pytest.raises(ValueError, match="expected names with forms"):
        sizes_of(op)
