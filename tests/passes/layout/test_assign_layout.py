"""Layouts of values that a step updates in place, and padding that no layout avoids."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering.emit import emit
from lazytpu.lowering.errors import LoweringError
from lazytpu.passes.layout.assign_layout import LAYOUT
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

X, W = "tensor<2x4x8x8xf32>", "tensor<4x4x1x1xf32>"
WINDOW = (
    "strides = [1, 1] low = [0, 0] high = [0, 0] lhs_dilation = [1, 1] rhs_dilation = [1, 1] window_reversal = [0, 0]"
)
GRADIENT = f'%g = lazytpu.convolution %x, %y {WINDOW} layout = "CN01,IO01,CN01" precision = default : ({X}, {X}) -> {W}'


def resident(result: int) -> str:
    return f"{{lazytpu.donate, lazytpu.successor = {result} : i64}}"


def laid(module: ModuleOp, passes: str = "assign-layout{generation=v6e}") -> tuple[list[str | None], list[str | None]]:
    """The layouts of arguments and of results after the passes have run twice; the text reads back."""
    for _ in range(2):
        run_pipeline(module, passes=passes, verify=True)
        text = print_module(module)
        assert print_module(parse_module(text)) == text
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    return layouts(main.arg_attrs), layouts(main.res_attrs)


def layouts(attributes: Iterable[Attribute] | None) -> list[str | None]:
    """The layout in each dictionary of attributes."""
    values = [x.data.get(LAYOUT) for x in attributes or () if isinstance(x, DictionaryAttr)]
    return [x.data if isinstance(x, StringAttr) else None for x in values]


def step(update: str, weight: str = resident(0), momentum: str = resident(1), gradient: str = GRADIENT) -> ModuleOp:
    arguments = f"%x : {X}, %y : {X}, %w : {W} {weight}, %m : {W} {momentum}"
    return parse_main(arguments, f"{gradient}\n{update}\nfunc.return %0, %1 : {W}, {W}")


UPDATE = f"%1 = lazytpu.add %m, %g : {W}\n%0 = lazytpu.sub %w, %1 : {W}"
NOTHING: list[str | None] = [None, None, None, None]


def test_a_weight_and_its_momentum() -> None:
    arguments, results = laid(step(UPDATE))
    assert (arguments, results) == ([None, None, "auto", "auto"], ["auto", "auto"])


def test_after_mark_donation() -> None:
    arguments, results = laid(step(UPDATE), "mark-donation,assign-layout")
    assert (arguments, results) == ([None, None, "auto", "auto"], ["auto", "auto"])


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (step(UPDATE, momentum=""), [None, None, "auto", None]),
        (step(UPDATE, weight="{lazytpu.donate}", momentum=""), NOTHING),
        (step(UPDATE, weight=resident(1), momentum=resident(1)), NOTHING),
        (step(f"%0 = lazytpu.neg %g : {W}\n%1 = lazytpu.neg %m : {W}"), NOTHING),
        (step(UPDATE, gradient=f"%g = lazytpu.neg %m : {W}"), NOTHING),
    ],
    ids=["momentum stays", "memory for any result", "one result for two", "not of itself", "no convolution"],
)
def test_other_arguments_keep_the_default_layout(module: ModuleOp, expected: list[str | None]) -> None:
    assert laid(module)[0] == expected


def test_matrices_are_left_alone() -> None:
    m = "tensor<4x4xf32>"
    flat = f"%f = lazytpu.reshape %g : ({W}) -> {m}\n%0 = lazytpu.sub %w, %f : {m}"
    module = parse_main(f"%x : {X}, %y : {X}, %w : {m} {resident(0)}", f"{GRADIENT}\n{flat}\nfunc.return %0 : {m}")
    assert laid(module) == ([None, None, None], [])


def test_gradients_of_clusters_are_seen_through_calls() -> None:
    module = parse_module(f"""builtin.module {{
      func.func @main(%x : {X}, %y : {X}, %w : {W} {resident(0)}) -> ({W}) {{
        %0 = func.call @part(%x, %w, %y) : ({X}, {W}, {X}) -> ({W})
        func.return %0 : {W}
      }}
      func.func private @part(%x : {X}, %w : {W}, %y : {X}) -> ({W}) {{
        {GRADIENT}
        %0 = lazytpu.sub %w, %g : {W}
        func.return %0 : {W}
      }}
    }}""")
    assert laid(module) == ([None, None, "auto"], ["auto"])


def test_unavoidable_padding_is_reported() -> None:
    def padding(rows: int, columns: int, dtype: str = "f32") -> list[str]:
        lhs, rhs, out = (f"tensor<{shape}x{dtype}>" for shape in (f"{rows}x16", f"16x{columns}", f"{rows}x{columns}"))
        dot = "%0 = lazytpu.dot_general %x, %y lhs_contract = [1] rhs_contract = [0] precision = default"
        module = parse_main(f"%x : {lhs}, %y : {rhs}", f"{dot} : ({lhs}, {rhs}) -> {out}\nfunc.return %0 : {out}")
        laid(module)
        emit(module)  # XLA does not see the attribute
        return re.findall(r'lazytpu.padding = "(.*?)"', print_module(module))

    assert padding(40, 40) == []  # too little
    assert padding(4096, 2) == padding(2048, 128) == []  # (4096, 2) lies as (2, 4096), in tiles of two sublanes
    assert padding(2050, 33, "bf16") == []  # 31 % of (48, 2176)
    assert padding(33, 33 * 33) == []

    lhs, out = "tensor<64x32x16xf32>", "tensor<64x32x32xf32>"
    dot = "%0 = lazytpu.dot_general %x, %y lhs_batch = [0] rhs_batch = [0] lhs_contract = [2] rhs_contract = [2]"
    module = parse_main(
        f"%x : {lhs}, %y : {lhs}", f"{dot} precision = default : ({lhs}, {lhs}) -> {out}\nfunc.return %0 : {out}"
    )
    laid(module)
    assert 'lazytpu.padding = "512 KiB, 50% of it padding"' in print_module(module)


def test_pass_is_in_the_pipeline_of_tpus() -> None:
    assert "assign-layout{generation=v6e}" in for_target(Target("tpu", "v6e"))
    assert "assign-layout" in for_target(Target("tpu"))
    assert "assign-layout" not in for_target(Target("cpu"))


M = "tensor<2x3xf32>"


def lowered(argument: str, result: str = "") -> str:
    text = f"""builtin.module {{ func.func @main(%x : {M} {{{argument}}}) -> ({M} {{{result}}}) {{
      %0 = lazytpu.neg %x : {M}
      func.return %0 : {M}
    }} }}"""
    return str(emit(parse_module(text)))


def test_layouts_are_lowered() -> None:
    attribute = 'lazytpu.layout = "{0,1}"'
    assert lowered(f"{attribute}, lazytpu.alias = 0 : i64", attribute).count('mhlo.layout_mode = "{0,1}"') == 2
    assert 'mhlo.layout_mode = "auto"' in lowered('lazytpu.layout = "auto"')
    assert "layout_mode" not in lowered("")


@pytest.mark.parametrize(
    ("argument", "result", "message"),
    [
        ('lazytpu.layout = "{0,0}"', "", r'expected "auto", or a permutation of the 2 dimensions, .*"\{0,1\}"'),
        ('lazytpu.layout = "columns"', "", "got|expected"),
        ('lazytpu.layout = "auto", lazytpu.alias = 0 : i64', "", 'the same layout; got "auto" and None'),
    ],
)
def test_invalid_layouts_are_refused(argument: str, result: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(argument, result)
