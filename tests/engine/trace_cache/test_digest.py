"""The canonical text of a trace is equal for equal traces in all processes, and differs for different traces."""

from __future__ import annotations

import enum
import math
import os
import struct
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lazytpu.engine.trace_cache.digest import NotCanonical, canonical
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout
from tests import zygote

FLOATS = Layout(torch.float32, (2, 3), (3, 1))
ADD = Record(
    op=torch.ops.aten.add.Tensor,
    arguments={"self": Operand(0, None), "other": Operand(1, ((2,), (1,), 0, torch.float32)), "alpha": Number(0, int)},
    outs=(FLOATS,),
    out_slots=(2,),
    written={},
    admitted=((0, FLOATS, False), (1, FLOATS, False)),
    line="train.py:3",
)

CHANGES: dict[str, list[Any]] = {
    "op": [torch.ops.aten.sub.Tensor, torch.ops.aten.add.Scalar],
    "arguments": [
        {**ADD.arguments, **change}
        for change in (
            {"self": Operand(1, None)},
            {"self": 0},
            {"other": Operand(1, None)},
            {"other": Operand(1, ((3,), (1,), 0, torch.float32))},
            {"other": Operand(1, ((2,), (2,), 0, torch.float32))},
            {"other": Operand(1, ((2,), (1,), 1, torch.float32))},
            {"other": Operand(1, ((2,), (1,), 0, torch.int32))},
            {"alpha": Number(1, int)},
            {"alpha": Number(0, float)},
            {"alpha": Number(0, int, torch.int64)},
            {"alpha": None},
            {"beta": None},
        )
    ],
    "outs": [
        (Layout(torch.int32, (2, 3), (3, 1)),),
        (Layout(torch.float32, (3, 2), (2, 1)),),
        (Layout(torch.float32, (2, 3), (1, 2)),),
        (FLOATS, None),
        (None, FLOATS),
    ],
    "out_slots": [(3,)],
    "written": [{"self": (2,)}, {"other": (2,)}, {"self": (3,)}, {"self": (2, 3)}],
    "admitted": [(), ((0, FLOATS, False), (1, FLOATS, True)), ((1, FLOATS, False), (0, FLOATS, False))],
    "rng": [0, 1],
    "settings": [("high",), ("highest",)],
    "in_backward": [True],
    "tuned": [True],
}


def test_text_contains_all_inputs_of_compilation() -> None:
    about_the_script = {"line", "in_step", "in_graph", "call"}  # and not about the program
    assert set(CHANGES) | about_the_script == {field.name for field in fields(Record)}, "a new field of Record"
    changed = [replace(ADD, **{name: value}) for name, values in CHANGES.items() for value in values]
    texts = [canonical([record]) for record in (ADD, *changed, replace(ADD, outs=(), out_slots=()))]
    assert len(set(texts)) == len(texts)


def test_text_does_not_contain_source_lines() -> None:
    assert canonical([replace(ADD, line="other.py:9")]) == canonical([ADD])


def test_text_depends_on_the_order_of_records() -> None:
    product = replace(ADD, op=torch.ops.aten.mul.Tensor)
    assert canonical([ADD, product]) != canonical([product, ADD])
    assert canonical([ADD, ADD]) != canonical([ADD])


_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.sampled_from([torch.float32, torch.bool, torch.strided, torch.channels_last, torch.device("tpu:0"), "tpu:0"]),
    st.sampled_from([0, 1, 0.0, -0.0, 1.0, math.nan, -math.nan, math.inf, True, False, "0", 0j, -0j, "nan"]),
    st.builds(Operand, st.integers(0, 3), st.none()),
    st.builds(Number, st.integers(0, 3), st.sampled_from([bool, int, float, complex])),
)
_STATIC = st.recursive(_PLAIN, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))


def _meaning(value: Any) -> Any:
    """The type and bits of a static argument, by which two arguments are equal."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_meaning, value))
    if isinstance(value, float):
        return float, struct.pack("d", value)
    if isinstance(value, complex):
        return complex, struct.pack("dd", value.real, value.imag)
    return type(value), value


@given(_STATIC, _STATIC)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_texts_are_equal_exactly_for_equal_arguments(left: Any, right: Any) -> None:
    texts = [canonical([replace(ADD, arguments={"alpha": value})]) for value in (left, right)]
    assert (texts[0] == texts[1]) == (_meaning(left) == _meaning(right))
    assert "\n" not in texts[0], "one record is one line"


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), Colour.RED, {1: 2}, torch.ones(2), [torch.Generator()], slice(2)])
def test_unknown_kind_of_argument_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical, match=r"argument 'alpha' of aten\.add\.Tensor: a .* has no canonical text"):
        canonical([replace(ADD, arguments={"alpha": value})])


def test_number_of_unknown_type_is_refused() -> None:
    with pytest.raises(NotCanonical, match=r"argument 'alpha' of aten\.add\.Tensor"):
        canonical([replace(ADD, arguments={"alpha": Number(0, str)})])


RECORDING = """
import torch
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.frontend.tensors import recorder

torch.manual_seed(0)
layer = torch.nn.Linear(4, 3).to("tpu")
norm = torch.nn.LayerNorm(3).to("tpu")
optimizer = torch.optim.Adam([*layer.parameters(), *norm.parameters()], lr=1e-3, eps=1e-9)
x = torch.randn(2, 4).to("tpu")
y = torch.nn.functional.dropout(norm(layer(x)).clamp(min=-float("inf")), 0.25)
y.to(torch.bfloat16).t().contiguous().float().pow(2.5).sum((0, 1), keepdim=True).backward()
optimizer.step()
state = recorder().state
print(canonical((state.parent if not state.recorded else state).records()))
"""


def test_text_is_equal_in_every_process() -> None:
    forked = zygote.run(["-c", RECORDING])  # with a hash seed that Python drew
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    fresh = subprocess.run([sys.executable, "-c", RECORDING], env=environment, capture_output=True, text=True)
    assert (forked.returncode, fresh.returncode) == (0, 0), forked.stderr + fresh.stderr
    first = forked.stdout
    assert fresh.stdout == first
    lines = first.splitlines()
    assert lines[0].startswith(
        "aten.addmm.default(self=%0;mat1=%1;mat2=%2[4,3;1,4;0;torch.float32]) %3:torch.float32[2,3;3,1]"
    )
    assert len(lines) > 20
    assert any("rng #" in line for line in lines) and any(line.endswith(" backward") for line in lines)
