"""Recording kernels: the generated source, the arguments' parts of the key, and a record that is made twice."""

from __future__ import annotations

import ast
import math
import traceback
import warnings
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.frontend import activation
from lazytpu.frontend.recording import codegen, kernels, keys
from lazytpu.frontend.tensors import recorder

aten = torch.ops.aten
OPS = [
    aten.add.Tensor, aten.add_.Tensor, aten.clamp.default, aten.uniform_.default, aten.mm.default, aten.cat.default,
    aten.split_with_sizes_copy.default, aten.native_layer_norm.default, aten._foreach_add_.ScalarList,
    aten._fused_adamw_.default, aten.var_mean.correction, aten.index_put_.default,
]  # fmt: skip


def source(op: Any) -> str:
    return codegen.source(op, activation.engine().facts(op))


@pytest.fixture(autouse=True)
def activated() -> None:
    torch.zeros(1).to("tpu")
    lazytpu.sync()


@pytest.mark.parametrize("op", OPS, ids=str)
def test_names_of_a_kernel_and_of_its_arguments_do_not_clash(op: Any) -> None:
    (function,) = ast.parse(source(op)).body
    assert isinstance(function, ast.FunctionDef)
    parameters = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    assigned = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    assert {codegen.safe(a.name) for a in op._schema.arguments} == parameters
    assert not any(name.startswith("_") for name in parameters), "a kernel's own names do"
    assert not parameters & kernels._NAMESPACE.keys(), "an argument hides no helper"
    builtins = {"type", "float", "int", "tuple", "map", "BaseException", "RuntimeError", "AttributeError", "_error"}
    assert names <= parameters | assigned | kernels._NAMESPACE.keys() | builtins | {"KERNEL", "NAME", "DEFAULTS"}


def test_arguments_keep_their_defaults_and_keywords() -> None:
    assert "def aten_add_Tensor(self, other, *, alpha=ABSENT):" in source(aten.add.Tensor)
    assert "def aten_uniform__default(self, from_=ABSENT, to=ABSENT, *, generator=" in source(aten.uniform_.default)
    assert "def aten_cat_default(tensors, dim=DEFAULTS['dim']):" in source(aten.cat.default)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (1.0, 1 + 0j), (0.0, -0.0), (1 + 0j, complex(1, -0.0)), (0, False), (None, 0)],
    ids=repr,
)
def test_numbers_that_compare_equal_have_keys_of_their_own(one: Any, other: Any) -> None:
    assert keys.exact(one) != keys.exact(other)
    assert keys.exact(one) == keys.exact(one)


def test_nan_is_one_key_and_absent_is_not_none() -> None:
    assert keys.exact(math.nan) == keys.exact(float("nan"))
    assert keys.exact(None) != keys.exact(keys.ABSENT)


def test_a_refused_record_leaves_no_trace() -> None:
    x, y = torch.ones(2, 3).to("tpu"), torch.ones(5).to("tpu")
    z = x * 2
    r = recorder()
    before = r.state, r.slots, len(r.values), len(r.buffers), list(r.numbers)
    for refused in (lambda: torch.add(x, y, alpha=3), lambda: torch._foreach_mul_([z, x], [y, y]), lambda: x @ x):
        with pytest.raises(RuntimeError):
            refused()
        assert (r.state, r.slots, len(r.values), len(r.buffers), r.numbers) == before
    assert (z + x).tolist() == [[3.0] * 3] * 2


def test_random_numbers_do_not_depend_on_where_a_trace_is_cut() -> None:
    def draws() -> list[float]:
        torch.manual_seed(5)
        x = torch.zeros(4).to("tpu")
        for _ in range(6):
            x = x * 2 + torch.empty_like(x).uniform_()
        with pytest.raises(RuntimeError):
            torch.normal(x, torch.ones(3).to("tpu"))
        return (x + torch.empty_like(x).uniform_()).tolist()

    expected = draws()
    with lazytpu.options(trace_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert draws() == expected


def test_a_traceback_shows_the_lines_of_a_kernel() -> None:
    x = torch.ones(2, 3, device="tpu")
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        torch.mm(x, x)
    shown = "".join(traceback.format_exception(caught.value))
    assert "<kernel of aten.mm.default>" in shown
    assert "miss(KERNEL, _r, _key, (self, mat2, ))" in shown
    assert "miss(KERNEL, _r, _key, (self, mat2, ))" in kernels.kernel(aten.mm.default).source
