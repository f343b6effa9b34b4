"""Aliasing, storages, versions and memory formats: each case runs on the CPU and on the device, and all observable
properties of its results must agree, including strides and offsets."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.frontend.alike import attempt, same, seen

A = torch.ops.aten
CASES: list[Callable[[str], Any]] = []


def case(function: Callable[[str], Any]) -> Callable[[str], Any]:
    CASES.append(function)
    return function


def ramp(d: str, n: int = 12) -> Tensor:
    return torch.arange(float(n)).to(d)


def together(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@case
def as_strided(d: str) -> list[Any]:
    x = ramp(d)
    overlapping = x.as_strided((3, 3), (1, 1))
    turned = x.view(3, 4).t()
    results = [
        overlapping + 1,
        overlapping.sum(),
        x[2:].as_strided((2, 2), (3, 1)),
        turned.as_strided((2, 2), (1, 4), 2),
    ]
    x[1:].as_strided((2, 3), (3, 1)).mul_(10)
    x.as_strided((2, 2), (5, 1), 3).fill_(-1)
    return [*results, overlapping, x]


@case
def as_strided_out_of_bounds(d: str) -> list[Any]:
    x = ramp(d)
    sizes: list[Any] = [
        ((3,), (-1,)),
        ((13,), (1,)),
        ((3,), (1, 1)),
        ((1,), (100,)),
        ((0,), (1,), 50),
        ((2,), (1,), -1),
    ]
    return [attempt(lambda s=s: x.as_strided(*s)) for s in sizes]


@case
def gradients_of_as_strided(d: str) -> list[Any]:
    x = ramp(d).requires_grad_()
    y = x.as_strided((3, 3), (2, 1))
    (y * y).sum().backward()
    z = ramp(d).requires_grad_()
    (z * 1).view(3, 4).t().as_strided((2, 2), (1, 4)).sum().backward()
    return [x.grad, z.grad]


@case
def set_(d: str) -> list[Any]:
    x, y, z, w = ramp(d), torch.ones(2, device=d), torch.empty(0, device=d), torch.ones(2, device=d)
    y.set_(x)  # pyright: ignore[reportArgumentType]
    y.add_(1)
    z.set_(x.untyped_storage(), 1, (2, 2), (4, 1))  # pyright: ignore[reportCallIssue, reportArgumentType]
    z.zero_()
    w.set_(x, 3, (2, 2), (3, 1))  # pyright: ignore[reportCallIssue, reportArgumentType]
    w.neg_()
    shared = [together(x, y), y.is_set_to(x), x.is_set_to(x[1:]), x.view(12).is_set_to(x)]
    viewed = torch.empty(0, device=d).set_(x.untyped_storage())  # pyright: ignore[reportArgumentType]
    return [x, y, z, w, viewed, A.set_.default(torch.empty(3, device=d)), *shared]


@case
def a_view_that_is_set_elsewhere(d: str) -> list[Any]:
    x, y = ramp(d), torch.zeros(3, device=d)
    view = x[2:]
    view.set_(y)  # pyright: ignore[reportArgumentType]
    view.add_(5)
    return [x, view, y]


@case
def resize_(d: str) -> list[Any]:
    x = ramp(d)
    view = x.view(3, 4)
    x.resize_(2, 3)
    before = x.clone()
    view[0, 0] = 9
    x.resize_(12)
    grown = ramp(d, 4).resize_(6)
    grown[4:] = 7
    row = grown[:3]
    tail = ramp(d)[4:]
    tail.resize_(2, 2).zero_()
    images = ramp(d, 24).resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    like = ramp(d).resize_as_(torch.empty(2, 3, device=d))
    errors = [attempt(lambda: ramp(d).requires_grad_().resize_(3)), attempt(lambda: ramp(d).resize_((-1,)))]
    return [before, x, view, grown, row, tail, images, like, *errors]


@case
def data(d: str) -> list[Any]:
    p = nn.Parameter(ramp(d, 4))
    view = p.view(2, 2).detach()
    p.data = torch.ones(4, device=d)
    p.data.mul_(3)
    p.data[0] = 5
    (p * p).sum().backward()
    assert p.grad is not None
    p.grad.data.zero_()
    p.data.copy_(torch.arange(4.0))
    return [p, view, p.grad, p._version]


@case
def versions(d: str) -> list[Any]:
    x = ramp(d)
    y, z, before = x.view(3, 4), x.detach(), x._version
    y.add_(1)
    x[0] = 1
    z.add_(1)
    x.data.add_(1)
    torch.add(x, 1, out=x)
    x.copy_(ramp("cpu"))
    A._foreach_add_([x, x[:2]], 1)
    A._foreach_zero_([x])
    return [x._version - before, y._version - before, z._version]


@case
def saved_tensors_that_are_written(d: str) -> list[Any]:
    results: list[Any] = []
    for function in (torch.exp, torch.square, torch.sigmoid, torch.relu, lambda x: x @ x):
        for write in (lambda h: h.add_(1), lambda h: A._foreach_add_([h.detach()], 1)):
            h = (ramp(d, 3) + 1).requires_grad_() * 1
            y = function(h)
            write(h)
            results.append(attempt(lambda y=y: y.sum().backward()))
    x = ramp(d).requires_grad_()
    return [*results, attempt(lambda: x.add_(1)), attempt(lambda: x[0].zero_())]


@case
def inference_mode(d: str) -> list[Any]:
    n = ramp(d).requires_grad_()
    with torch.inference_mode():
        y = ramp(d) + 1
        view = y.view(3, 4)
        view.add_(1)
        A._foreach_add_([y], 1)
        marks = [y.is_inference(), view.is_inference(), (n * 2).requires_grad, n.view(3, 4).is_inference()]
    calls: list[Callable[[], Any]] = [lambda: y.add_(1), lambda: (y * n).sum(), lambda: y._version, y.requires_grad_]
    return [marks, *map(attempt, calls), y.clone()]


@case
def gradients_through_written_views(d: str) -> list[Any]:
    x = ramp(d).requires_grad_()
    y = x * 1
    y[2:4].mul_(3)
    y.view(3, 4)[:, 0].zero_()
    (y.clone() ** 2).sum().backward()
    halves = (x * 1).chunk(2)
    return [x.grad, attempt(lambda: halves[0].add_(1))]


@case
def unfold(d: str) -> list[Any]:
    x = ramp(d)
    windows, squares = x.unfold(0, 4, 2), x.view(3, 4).unfold(1, 2, 1).unfold(0, 2, 1)
    x[2] = 100
    return [windows, squares, windows.sum(-1), squares.mean((2, 3)), attempt(lambda: x.unfold(0, 13, 1))]


@case
def expanded_tensors_that_are_written(d: str) -> list[Any]:
    x = ramp(d, 3)
    e = x.expand(2, 3)
    calls: list[Callable[[], Any]] = [
        lambda: e.add_(1),
        lambda: e.copy_(torch.ones(2, 3)),
        lambda: torch.add(e, 1, out=e),
        lambda: e.masked_fill_(e > 1, 7.0).clone(),
        lambda: e.fill_(3).clone(),
        lambda: x.as_strided((3, 2), (0, 1)).mul_(2),
    ]
    return [*map(attempt, calls), x]


@case
def overlapping_writes(d: str) -> list[Any]:
    x = ramp(d)
    calls: list[Callable[[], Any]] = [
        lambda: x[1:].add_(x[:-1]),
        lambda: x[1:].copy_(x[:-1]),
        lambda: torch.add(x[:-1], 1, out=x[1:]),
        lambda: torch.cat([x[:3], x[3:6]], out=x[:6]),
        lambda: torch.where(x > 5, x, -x, out=x),
        lambda: x[:6].add_(x[6:]),
    ]
    return [*map(attempt, calls), x]


@case
def storages_that_are_shared(d: str) -> list[Any]:
    x = ramp(d)
    v = x.view(3, 4)
    views = [v.t(), v[1:], v[:, 1], v.expand(2, 3, 4), v.diagonal(), v.split(1)[1], v.narrow(0, 1, 1), v.flatten()]
    views += [v.reshape(4, 3), v.detach(), v.view(torch.int32), v.real, v.contiguous(), v.to(torch.float32), v.mT]
    views += [v.ravel(), v.data, v.positive(), v.conj(), torch.atleast_3d(v), v.unbind(0)[1], v.to(d), v.float()]
    copies = [v.clone(), v.t().contiguous(), v.double(), v.t().reshape(-1), v.t().ravel(), v + 0, x[[0, 1]]]
    assert all(together(x, view) for view in views) and not any(together(x, c) for c in copies)
    return [[t._is_view() for t in views], [t.data_ptr() - x.data_ptr() for t in views]]


@case
def swapped(d: str) -> list[Any]:
    a, b = ramp(d, 3), torch.ones(2, 2, device=d)
    torch.utils.swap_tensors(a, b)
    return [a.add_(1), b]


@case
def no_elements(d: str) -> list[Any]:
    x = torch.empty_strided((2, 0, 3), (7, 5, 2), device=d)
    tiny = torch.empty_strided((1, 1), (10, 20), device=d).zero_()
    results = [
        x,
        tiny,
        x + 1,
        x.sum(1),
        x.sum(),
        tiny + 1,
        tiny.clone(),
        x.clone(),
        x.reshape(0),
        tiny.t(),
        x.view(3, 0, 2),
    ]
    results += [x.double(), torch.cat([x, x]), torch.empty(0, 3, device=d).mean(0), x.contiguous(), tiny.contiguous()]
    return [*results, x.is_contiguous(), tiny.is_contiguous()]


@case
def clones(d: str) -> list[Any]:
    x = ramp(d, 24).view(1, 2, 3, 4)
    results: list[Any] = []
    for t in (x.permute(0, 3, 1, 2), x.permute(3, 2, 1, 0), x[:, :, ::2], x.expand(2, 2, 3, 4), x[..., 1:3].mT):
        results += [
            t.clone(),
            t.clone(memory_format=torch.contiguous_format),
            t.detach(),
            torch.zeros_like(t),
            t.double(),
        ]
        results += [t.contiguous(memory_format=torch.channels_last), t.is_contiguous(memory_format=torch.channels_last)]
    return results


@case
def memory_formats(d: str) -> list[Any]:
    x, last = ramp(d, 24).view(1, 2, 3, 4), torch.channels_last
    results = [
        x.to(d, memory_format=last),
        torch.zeros_like(x, memory_format=last),
        x.clone(memory_format=last).double(),
    ]
    strides = [torch.empty(1, 2, 3, 4, device=d, memory_format=last).stride()]
    calls: list[Callable[[], Any]] = [
        lambda: ramp(d).contiguous(memory_format=last),
        lambda: x.contiguous(memory_format=last).view(-1),
        lambda: torch.empty(2, 2, memory_format=torch.preserve_format, device=d),
        lambda: ramp(d).resize_(2, memory_format=torch.preserve_format),
    ]
    return [*results, *strides, *map(attempt, calls)]


@case
def channels_last_through_modules(d: str) -> list[Any]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)]
    module = nn.Sequential(*layers).to(d, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x = torch.randn(2, 3, 8, 8).to(d).to(memory_format=torch.channels_last).requires_grad_()
    h, strides = x, list[Any]()
    for layer in module:
        h = layer(h)
        strides.append(h.stride())
    h.square().sum().backward()
    assert x.grad is not None
    strides += [p.grad.stride() for p in module.parameters() if p.grad is not None]
    modules = [
        x.grad,
        x + x.contiguous(),
        F.dropout(x, 0.0),
        x.half(),
        torch.cat([x, x], 1),
        F.interpolate(x, scale_factor=2),
    ]
    return [*strides, *(t.stride() for t in modules)]


@case
def views_turned_in_place(d: str) -> list[Any]:
    x = ramp(d).view(3, 4)
    y = x.clone()
    y.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1).swapaxes_(0, 1).add_(1)
    resized = x.clone()
    resized.resize_(2, 2).unsqueeze_(-1)
    return [y, resized, x.clone().as_strided_((2, 2), (1, 2)), x.clone().squeeze_().t_().detach_()]


@case
def copies_of_storages(d: str) -> list[Any]:
    x = ramp(d).view(3, 4)
    a, b = copy.deepcopy([x, x[1]])
    a.zero_()
    file = io.BytesIO()
    torch.save([x.t(), x[1]], file)
    file.seek(0)
    p, q = torch.load(file)
    p.add_(1)
    return [a, b, p, q, x[1], copy.deepcopy(x.t()), copy.deepcopy(x[:, ::2])]


@case
def resized_storages(d: str) -> list[Any]:
    x = ramp(d, 4)
    storage = x.untyped_storage()
    sizes = [storage.nbytes()]
    for size in (32, 0, 16):
        storage.resize_(size)
        sizes.append(storage.nbytes())
    return [*sizes, x.element_size(), x.shape]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_a_case_agrees_with_the_cpu(function: Callable[[str], Any]) -> None:
    same(seen(function("tpu")), seen(function("cpu")))
