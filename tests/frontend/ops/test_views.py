"""Views whose size, stride and offset are remembered: the same as the CPU's at every call, of the same storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazytpu.frontend.ops import metadata, views

BASE = torch.arange(120.0).view(2, 3, 4, 5)
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "as_strided": lambda x: x.as_strided((3, 2), (2, 7), 5),
    "as_strided of a view": lambda x: x[1].as_strided((3, 2), (2, 7)),
    "chunk": lambda x: x.chunk(2, 3),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "expand": lambda x: x[:, :1].expand(2, 7, 4, 5),
    "flatten": lambda x: x.flatten(1, 2),
    "movedim": lambda x: x.movedim(0, 2),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "permute": lambda x: x.permute(3, 0, 2, 1),
    "reshape": lambda x: x.transpose(0, 1).reshape(3, 2, 20),
    "select": lambda x: x[1],
    "select from the end": lambda x: x.select(2, -1),
    "slice": lambda x: x[:, 1:, ::2],
    "slice with defaults": lambda x: torch.ops.aten.slice.Tensor(x),
    "split": lambda x: x.split(3, 3),
    "split_with_sizes": lambda x: x.split([1, 3], 2),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze of a dimension": lambda x: x[:, :1].squeeze(1),
    "t": lambda x: x[1, 1].t(),
    "transpose": lambda x: x.transpose(-1, 1),
    "unbind": lambda x: x.unbind(1),
    "unfold": lambda x: x.unfold(3, 2, 2),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "view": lambda x: x.view(6, -1),
    "view of another dtype": lambda x: x.view(torch.int32),
}


def _pieces(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _geometry(result: Any) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.stride(), t.storage_offset(), t.dtype) for t in _pieces(result)]


@pytest.mark.parametrize("name", VIEWS)
def test_repeated_view_is_as_on_the_cpu(name: str) -> None:
    view = VIEWS[name]
    x = BASE.to("tpu")
    for start in (x, x.clone(), x[:, :, 1:3], x):  # alternating sizes and strides
        on_cpu = BASE[:, :, 1:3] if start.shape != BASE.shape else BASE
        try:
            expected = view(on_cpu)
        except RuntimeError as error:  # each time, a refused view is refused
            with pytest.raises(type(error)):
                view(start)
            continue
        actual = view(start)
        assert _geometry(actual) == _geometry(expected)
        for piece, wanted in zip(_pieces(actual), _pieces(expected), strict=True):
            assert torch.equal(piece.cpu(), wanted)


@pytest.mark.parametrize("name", VIEWS)
def test_repeated_view_writes_its_base(name: str) -> None:
    view = VIEWS[name]
    for _ in range(2):
        on_cpu, x = BASE.clone(), BASE.to("tpu")
        for base in (on_cpu, x):
            for piece in _pieces(view(base)):
                if name not in ("reshape", "expand"):  # a copy; overlapping memory
                    piece.add_(1)
        assert torch.equal(x.cpu(), on_cpu)


def test_repeated_view_has_its_gradient() -> None:
    for _ in range(2):
        gradients = []
        for device in ("cpu", "tpu"):
            x = BASE.clone().to(device).requires_grad_()
            y = x.transpose(1, 2)[:, 1:].unsqueeze(0).expand(2, -1, -1, -1, -1).reshape(2, 2, -1)
            for piece in y.split(10, 2):
                assert piece._base is y
            torch.stack([(piece * piece).sum() for piece in y.split(10, 2)]).sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
        assert torch.equal(*gradients)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("created_inside", [True, False])
def test_view_is_an_inference_tensor_as_its_base_is(inside: bool, created_inside: bool) -> None:
    with torch.inference_mode(created_inside):
        x = torch.ones(4, 6, device="tpu")
    for _ in range(3):
        with torch.inference_mode(inside):
            made = [x.t(), x.view(24), x[1:], x.as_strided((2, 2), (1, 2)), *x.split(2)]
        assert [t.is_inference() for t in made] == [created_inside] * len(made)


def test_view_keeps_the_conjugate_bit() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    y = x.to("tpu").conj()
    for _ in range(2):
        assert y.t().is_conj()
        assert torch.equal(y.t().cpu(), x.conj().t())


def test_parameter_is_viewed_as_a_plain_tensor() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4, device="tpu"))
    for _ in range(2):
        assert type(weight.t()) is torch.Tensor
        assert weight.t().requires_grad


def test_view_outside_of_memory_is_refused_each_time() -> None:
    x = torch.ones(6, device="tpu")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of bounds for storage"):
            x.as_strided((4,), (2,))
        with pytest.raises(RuntimeError, match="Negative strides"):
            x.as_strided((2,), (-1,), 3)


def test_geometries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_LIMIT", 3)
    monkeypatch.setattr(metadata, "_IN_BOUNDS_LIMIT", 3)
    x = torch.arange(8.0, device="tpu")
    for i in range(8):
        assert x[i].item() == i
        assert x.as_strided((1,), (1,), i).item() == i
