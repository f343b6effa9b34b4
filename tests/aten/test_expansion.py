"""Decompositions: all operations of Python code on meta tensors are imported, or refused with an explanation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazytpu.aten import dispatch, registry
from tests.aten.deferred import check
from tests.aten.harness import run

SIN = torch.ops.aten.sin.default
X = torch.tensor([[0.3, -0.7, 1.5], [2.0, 0.1, -2.5]])


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
    """Run a function of one tensor in place of torch's decomposition of sin."""

    def through(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        registry.load()
        monkeypatch.delitem(registry.RULES, str(SIN))
        original = dispatch.decomposition
        monkeypatch.setattr(dispatch, "decomposition", lambda op: function if op is SIN else original(op))
        return run(SIN, x, outs=[function(x.clone())])[0]

    return through


def written(x: torch.Tensor) -> torch.Tensor:
    new = x.new_zeros(3, 2)
    new[:, 0] = x[0]
    new.t()[1].add_(x[1])
    return new


def turned(x: torch.Tensor) -> torch.Tensor:
    new = x + 1
    new.unsqueeze_(0).transpose_(1, 2).squeeze_(0)
    return new.t_().swapaxes_(0, 1).swapdims_(0, 1).add_(x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an op": lambda x: x * 2 + 1,
    "a composite op": lambda x: torch.ops.aten.to.dtype(x * 10, torch.int64),
    "a view": lambda x: x.t()[1:].reshape(-1) + x.t()[1:].flatten(),
    "an expanded result": lambda x: (x + 1)[:1].expand(4, 3),
    "writes through views": written,
    "dims turned in place": turned,
    "numbers on the device": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device),
    "numbers on the CPU": lambda x: x + torch.tensor(2.5),
    "a bfloat16 number on the CPU": lambda x: x + torch.tensor(2.5, dtype=torch.bfloat16),
    "lazy conjugation": lambda x: torch.complex(x, x + 1).conj() * 2,
    "a part of a conjugate": lambda x: torch.complex(x, x + 1).conj().imag + 1,
    "new tensors": lambda x: torch.arange(3, device=x.device) + torch.full((3,), 2, device=x.device),
    "prims": lambda x: torch.ops.prims.convert_element_type(torch.ops.prims.transpose(x, [1, 0]), torch.float64),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_of_decompositions_are_imported(decomposed: Callable[..., torch.Tensor], name: str) -> None:
    got, want = decomposed(FUNCTIONS[name], X), FUNCTIONS[name](X.clone())
    torch.testing.assert_close(got, want.resolve_conj())


def test_circular_decomposition_is_refused(decomposed: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(NotImplementedError, match=r"aten\.sin\.default.*has no rule"):
        decomposed(lambda x: torch.sin(x), X)


def test_unknown_contents_are_refused(decomposed: Callable[..., torch.Tensor]) -> None:
    elsewhere = torch.ones(2, 3, device="meta")
    with pytest.raises(NotImplementedError, match="without calling an op"):
        decomposed(lambda x: x + (elsewhere if x.device.type == "meta" else 1), X)


def test_composite_ops_without_a_rule() -> None:
    op = torch.ops.aten.absolute.default
    assert str(op) not in registry.load() and dispatch.decomposition(op) is not None
    check(op, torch.complex(X, X + 1))


def test_in_place_op_with_other_argument_names() -> None:
    check(torch.ops.aten.dropout_.default, X.clone(), 0.5, False)
    check(torch.ops.aten.dropout_.default, X.clone(), 0.0, True)
    check(torch.ops.aten.polygamma_.default, X.abs(), 1)
    check(torch.ops.aten.ldexp_.default, X.clone(), torch.tensor([1, 2, 3]))


def test_overloads_of_torchscript_are_not_supported() -> None:
    assert not dispatch.supported(torch.ops.aten.ldexp.default)
    assert dispatch.supported(torch.ops.aten.ldexp.Tensor)


def test_gradient_through_dims_turned_in_place() -> None:
    check(torch.ops.aten.affine_grid_generator_backward.default, torch.randn(1, 3, 2, 2), [1, 2, 3, 2], False)
