"""Steps import no sympy, and code that needs it gets torch's modules unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

BEGIN = """
import json, sys, torch
name = "torch.fx.experimental.symbolic_shapes"
said = []
x = torch.ones(2, 3, 8, 8, device="tpu")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten()).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
model(x).add(1).square().mean().backward()
optimizer.step()
assert torch.broadcast_shapes((2, 1), (3,)) == (2, 3)
said.append("sympy" in sys.modules)
"""
END = "\nprint(json.dumps(said))"


def run(code: str) -> list[Any]:
    """Return the list `said` of a fresh Python process after a step of a convolution net."""
    done = subprocess.run([sys.executable, "-c", BEGIN + code + END], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_step_loads_no_sympy_and_a_symbol_does() -> None:
    said = run("""
stand_in = sys.modules[name]
said.append([bool(stand_in.__file__), hasattr(stand_in, "__path__"), hasattr(stand_in, "__wrapped__")])
from torch.fx.experimental.symbolic_shapes import *
said.append("sympy" in sys.modules)
""")
    assert said == [False, [True, False, False], True]


def test_answers_are_the_same_before_and_after_it_is_loaded() -> None:
    """A wrong condition is rejected without it, too."""
    said = run("""
try:
    model(torch.ones(2, 5, 8, 8, device="tpu"))
except RuntimeError as error:
    said.append(str(error).split(",")[0])
try:
    torch.add("x", x)
except TypeError:
    pass
try:
    torch._check(1)
except TypeError as error:
    said.append(str(error))
said.append("sympy" in sys.modules)
from importlib import import_module
stand_in = import_module(name)
def ask():
    from torch.fx.experimental.symbolic_shapes import expect_true, guard_or_false, is_nested_int
    from torch.fx.experimental.symbolic_shapes import sym_and, sym_eq, sym_or
    return expect_true(True), guard_or_false(False), is_nested_int(2), sym_and(True, False), sym_or(True, False), \\
        sym_eq([1, (2,)], (1, [2])), sym_eq((1,), (1, 2)), sym_eq(1, 2)
plain = ask()
said.append(["sympy" in sys.modules, *plain])
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
assert guard_or_false is import_module(name).guard_or_false is torch.fx.experimental.symbolic_shapes.guard_or_false
assert type(sys.modules[name]) is type(sys) and stand_in.ShapeEnv is ShapeEnv
mode = FakeTensorMode(shape_env=ShapeEnv())
size = mode.from_tensor(torch.ones(3, 4)).shape[0]
asked = stand_in.guard_or_false(size == 3), bool(size > 2)
said.append([*asked, plain == ask()])
import sympy
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as kinds, elementwise_dtypes
found = elementwise_dtypes(sympy.Integer(1), torch.ones(2), type_promotion_kind=kinds.DEFAULT)
said.append([str(dtype) for dtype in found])
""")
    answers = [True, False, False, False, True, True, False, False]
    assert said[1].startswith("Given groups=1")
    assert said[2:4] == ["cond must be a bool, but got <class 'int'>", False]
    assert said[4:] == [[False, *answers], [True, True, True], ["torch.float32", "torch.float32"]]


def test_dynamo_finds_the_module_itself() -> None:
    said = run("""
@torch.compile(backend="eager", dynamic=True)
def compiled(x):
    torch._check(x.shape[0] > 1)
    return x.sin() + x.shape[0]
said.append([compiled(torch.zeros(n, 2)).sum().item() for n in (3, 4)])
said.append(type(sys.modules[name]) is type(sys))
""")
    assert said == [False, [18.0, 32.0], True]
