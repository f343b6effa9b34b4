"""Layers and ops, forward and backward, at the sizes of a bucket run by one program, with the values of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lazytpu
from lazytpu.frontend.tensors import value_of
from lazytpu.runtime.buffers import padded
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.xla import client

SIZES = (20, 40, 30, 25, 37)
Run = Callable[..., Sequence[torch.Tensor]]


@pytest.fixture(autouse=True)
def buckets() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(19, 48, 96), background_compile=0.0):
        yield
        lazytpu.sync()


def normal(*shape: int | str) -> Callable[[int], list[torch.Tensor]]:
    """A function that draws random floats, with the size n for dims "n"."""
    return lambda n: [torch.randn(*[n if size == "n" else int(size) for size in shape])]


def graded(layer: nn.Module | None, run: Callable[..., torch.Tensor]) -> Run:
    """A function that returns the result of `run` for a layer and its inputs, and all gradients of a loss."""

    def both(*inputs: torch.Tensor) -> list[torch.Tensor]:
        result = run(layer, *inputs)
        leaves = [x for x in inputs if x.requires_grad] + list(layer.parameters() if layer else ())
        return [result, *torch.autograd.grad(result.sin().sum(), leaves)]

    return both


def attention(_: Any, q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, 2 * q, q + 1, attn_mask=bias)


def first(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)[0]


def apply_layer(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


def speech_layers() -> nn.Module:
    """Strided, grouped and pointwise layers of a speech model."""
    strided, depthwise = nn.Conv1d(3, 4, 5, stride=2, padding=2), nn.Conv1d(4, 4, 3, padding=1, groups=4)
    return nn.ModuleList([strided, depthwise, nn.LayerNorm(4), nn.Linear(4, 5)])


def speech_output(layers: Any, x: torch.Tensor) -> torch.Tensor:
    strided, depthwise, norm, linear = layers
    return linear(norm(depthwise(strided(x).relu()).transpose(1, 2)))


def strided_twice() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(4, 4, 3, stride=2, padding=1))


def strided_by_six() -> nn.Module:
    """Layers with result sizes of n/6; their images have squares of quotients as element counts."""
    grouped = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2)
    return nn.Sequential(nn.Conv2d(3, 4, 5, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), grouped)


def pooled_twice(_: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool1d(functional.max_pool1d(x, 2).sin(), 2)


Inputs = Callable[[int], list[torch.Tensor]]
GRADED: dict[str, tuple[Callable[[], nn.Module | None], Callable[..., torch.Tensor], Inputs]] = {
    "lstm": (lambda: nn.LSTM(4, 6, batch_first=True), first, normal(2, "n", 4)),
    "gru with a varying batch": (lambda: nn.GRU(4, 6, batch_first=True), first, normal("n", 3, 4)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), apply_layer, normal(2, 3, "n")),
    "strides and groups": (speech_layers, speech_output, normal(2, 3, "n")),
    "strides of strides": (strided_twice, lambda layers, x: layers(x).transpose(1, 2), normal(2, 3, "n")),
    "strides of other strides": (strided_by_six, apply_layer, normal(2, 3, "n", "n")),
    "maxima of maxima": (lambda: None, pooled_twice, normal(2, 3, "n")),
    "attention with the gradient of a bias": (
        lambda: None, attention, lambda n: [torch.randn(2, 2, n, 4), torch.randn(n, n)]
    ),
    "merged rows of a batch": (lambda: nn.Linear(6, 3), lambda f, x: f(x.reshape(-1, 6)), normal(4, "n", 6)),
    "maxima of windows": (lambda: None, lambda _, x: functional.max_pool1d(x, 3, 1, 1), normal(2, 3, "n")),
    "windows with a remainder": (lambda: None, lambda _, x: functional.avg_pool1d(x, 2), normal(2, 3, "n")),
    "mean of squares": (lambda: None, lambda _, x: functional.mse_loss(x, torch.ones_like(x)), normal("n", 3)),
    "diagonal": (lambda: None, lambda _, x: (x @ x.T).diagonal(), normal("n", 3)),
    "cholesky": (
        lambda: None, lambda _, x: torch.linalg.cholesky(x @ x.mT + torch.eye(len(x), device=x.device)), normal("n", 3)
    ),
    "chosen by a mask": (lambda: None, lambda _, x: x[x > 0].square().mean(), normal(3, "n")),
}  # fmt: skip


def agree(run: Run, on_device: Run, inputs: Inputs) -> None:
    """Compare values at all sizes, and check that the last size needs no new program."""
    torch.manual_seed(0)
    for n in SIZES:
        before = len(lazytpu.explain())
        arguments = inputs(n)
        want = run(*[x.clone().requires_grad_(x.is_floating_point()) for x in arguments])
        got = on_device(*[x.to("tpu").requires_grad_(x.is_floating_point()) for x in arguments])
        lazytpu.sync()
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=1e-4, atol=1e-4)
        if n == SIZES[-1]:  # counts may be in another bucket
            assert all("one program for sizes" in str(program) for program in list(lazytpu.explain())[before:])


LONG = ("windows with a remainder", "gru with a varying batch", "maxima of windows", "diagonal", "cholesky")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in GRADED])
def test_layers_equal_the_cpu_by_one_program(name: str) -> None:
    make, run, inputs = GRADED[name]
    torch.manual_seed(1)
    host, device = make(), make()
    if host is not None and device is not None:
        device.load_state_dict(host.state_dict())
        device.to("tpu")
    agree(graded(host, run), graded(device, run), inputs)


COUNTED: dict[str, tuple[Run, Inputs]] = {
    "nonzero": (lambda x: [(x > 0).nonzero()], normal("n", 3)),
    "masked_select": (lambda x, y: [torch.masked_select(y, x > 0)], lambda n: [torch.randn(n, 1), torch.randn(n, 3)]),
    "unique": (
        lambda x: torch.unique(x, return_inverse=True, return_counts=True), lambda n: [torch.randint(n // 2, (n,))]
    ),
    "repeat_interleave": (
        lambda x, r: [x.repeat_interleave(r, 0)], lambda n: [torch.randn(n, 3), torch.randint(0, 3, (n,))]
    ),
    "repeat_interleave to a known size": (
        lambda x, r: [x.repeat_interleave(r, 0, output_size=2 * len(x))],
        lambda n: [torch.randn(n, 3), torch.tensor([3, 1, *[2] * (n - 2)])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_counts_have_programs_for_buckets(name: str) -> None:
    run, inputs = COUNTED[name]
    agree(run, run, inputs)


def test_random_numbers_equal_the_exact_program() -> None:
    def drawn(x: torch.Tensor) -> list[torch.Tensor]:
        torch.get_device_module("tpu").manual_seed(3)
        hidden = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return [hidden, functional.dropout(x, 0.5), torch.randn_like(x), torch.randperm(x.shape[2], device="tpu")]

    inputs = [torch.randn(2, 3, n, 4).to("tpu") for n in SIZES[:3]]
    got = [[y.cpu() for y in drawn(x)] for x in inputs][-1]
    with lazytpu.mode("strict"):
        want = [y.cpu() for y in drawn(inputs[-1])]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_index_is_checked_at_the_true_size() -> None:
    table = torch.arange(60.0)
    for n in SIZES:
        rows = table[:n].to("tpu")
        assert rows[torch.tensor([n - 1, -n]).to("tpu")].tolist() == [n - 1, 0]
        lazytpu.sync()
        with pytest.raises(IndexError):
            rows[torch.tensor([n]).to("tpu")].cpu()


def test_padded_cache_is_donated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded, "POISON", False)  # poisoning copies the array
    cache, updated = torch.zeros(2, 20).to("tpu"), torch.zeros(2, 20)
    before = None
    for n in SIZES:
        new = torch.full((2, 1), float(n))
        cache, updated = torch.cat([cache, new.to("tpu")], 1), torch.cat([updated, new], 1)
        lazytpu.mark_step()
        before = value_of(cache).buffer
        array = getattr(before, "kept", None)
        cache.mul_(2)
        updated.mul_(2)
        lazytpu.mark_step()
    assert isinstance(before, PaddedBuffer) and before.gone()
    assert client.is_deleted(array)
    assert torch.equal(cache.cpu(), updated)


def test_op_refused_at_other_sizes_has_an_exact_program() -> None:
    with lazytpu.options(buckets=(64,)):
        for n in (50, 60, 55):
            x = torch.randn(3, n)
            assert torch.equal(x.to("tpu").narrow_copy(1, 40, 8).cpu(), x.narrow_copy(1, 40, 8))


def test_explanation_has_the_cost_of_padding() -> None:
    for n in SIZES[:3]:
        x = torch.randn(n, 3)
        y = (x.to("tpu") + 0.25).sum(0)
        lazytpu.mark_step()
        torch.testing.assert_close(y.cpu(), (x + 0.25).sum(0))
    explanation = str(lazytpu.explain()[-1])
    assert "one program for sizes n 20..48, now 40, 17 % padding" in explanation
    assert "padding: 1 operands are masked, 0 moved into a row" in explanation
