"""The same results in every mode: ops, views and writes, random numbers, models, training.

Integers, random numbers, float16 and bfloat16 agree to the bit. In float32 a product that is added to something may be
rounded once in a program of both ops (a fused multiply-add), and twice in programs of one op each: the last bit may
differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils.checkpoint import checkpoint

import lazytpu

MODES = ("fused", "lazy", "strict", "debug")


def to_cpu(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach().cpu()
    if isinstance(result, list | tuple):
        return [to_cpu(r) for r in result]
    return result


def in_every_mode(work: Callable[[], Any]) -> dict[str, Any]:
    """Return the results of `work` in each mode, moved to the CPU. Each run begins with the same seed."""
    results: dict[str, Any] = {}
    for mode in MODES:
        with lazytpu.mode(mode):
            torch.manual_seed(0)
            results[mode] = to_cpu(work())
    return results


def assert_same(work: Callable[[], Any], rtol: float = 0.0, atol: float = 0.0) -> Any:
    """Check that all modes give the same results, bitwise equal without a tolerance, and return them."""
    results = in_every_mode(work)
    for mode in MODES[1:]:
        torch.testing.assert_close(
            results[mode],
            results["fused"],
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda message, mode=mode: f"{mode} differs from fused: {message}",
        )
    return results["fused"]


# -- ops

OPS = """add sub mul div remainder pow exp log1p tanh sigmoid erf where clamp floor eq maximum sum mean amax argmax prod
    std cumsum sort topk gather scatter_add index_select index_add masked_fill cat stack roll flip tril matmul addmm bmm
    softmax nn.functional.layer_norm nn.functional.gelu nn.functional.conv2d nn.functional.max_pool2d
    nn.functional.embedding nn.functional.cross_entropy nn.functional.interpolate linalg.cholesky fft.rfft""".split()


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if isinstance(value, list | tuple):
        return type(value)(_moved(v, device) for v in value)
    return value


@pytest.mark.parametrize("name", OPS)
def test_ops_are_equal_in_modes(name: str) -> None:
    op = next(info for info in op_db if info.name == name)
    torch.manual_seed(0)
    sample = next(iter(op.sample_inputs_func(op, "cpu", torch.float32, False)))
    x, args = _moved(sample.input, "tpu"), _moved(tuple(sample.args), "tpu")
    assert_same(lambda: op(x, *args, **sample.kwargs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_chains_are_rounded_after_every_op(dtype: torch.dtype) -> None:
    x, y, z = (torch.randn(33, 17, generator=torch.Generator().manual_seed(i)).mul(9).to(dtype) for i in range(3))

    def work(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        chain = (x * y + z) * x - y
        return [chain, x * y * z, x + y + z, (chain.abs() + 1).sum(0)]

    on_tpu = [t.to("tpu") for t in (x, y, z)]
    results = assert_same(lambda: work(*on_tpu))
    torch.testing.assert_close(results[:3], work(x, y, z)[:3], rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 6), (torch.bfloat16, 4)])
def test_products_are_rounded_before_they_are_added(dtype: torch.dtype, bits: int) -> None:
    """In one fused multiply-add the result is 2 ** (-2 * bits), not 0."""
    x = torch.full((33, 17), 1 + 2.0**-bits, dtype=dtype, device="tpu")
    y = torch.full((33, 17), -1 - 2.0 ** (1 - bits), dtype=dtype, device="tpu")
    for result in assert_same(lambda: [x * x + y, y + x * x, -y - x * x, x * x.t().t() - -y]):
        assert not result.any()


# XLA:CPU calls a library for reductions, and passes the ops before them to it as well.
REDUCED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y, z: (x * y + z).sum(1, dtype=torch.float32).to(x.dtype),
    "rows of a view": lambda x, y, z: (x * y + z).t()[3:].float().mean(0).to(x.dtype),
    "amax": lambda x, y, z: (x * y - z).amax(1),
    "softmax": lambda x, y, z: (x * y).softmax(1, dtype=torch.float32).to(x.dtype),
    "cumsum": lambda x, y, z: (x * y + z).cumsum(1, dtype=x.dtype),
    "there and back": lambda x, y, z: (x.float() * 0.3).to(x.dtype).float().amax(1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8])
def test_operands_of_reductions_are_rounded_first(dtype: torch.dtype) -> None:
    low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
    on_cpu = [torch.randint(low, high, (64, 96), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    scale = 1 / 37 if dtype.is_floating_point else 1
    x, y, z = ((t * scale).to(dtype) for t in on_cpu)
    on_tpu = [t.to("tpu") for t in (x, y, z)]
    for name, reduce in REDUCED.items():
        results = assert_same(lambda reduce=reduce: reduce(*on_tpu))
        tolerance = 1e-2 if dtype.is_floating_point else 0
        torch.testing.assert_close(
            results, reduce(x, y, z), rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_views_and_writes_in_place() -> None:
    def work() -> list[Tensor]:
        x = torch.arange(24.0, device="tpu").reshape(4, 6)
        rows, columns = x[1:3], x.t()[::2]
        rows.mul_(2)
        columns.add_(rows.sum())
        x.view(2, 12)[1].neg_()
        x[:, 0] = 7
        x.diagonal().fill_(1)
        alias = x.detach()
        alias.clamp_(-50, 50)
        target = torch.empty(4, device="tpu")
        torch.sum(x, dim=1, out=target)
        x[x > 40] = 0
        many = [torch.ones(3, device="tpu"), x[0]]
        torch._foreach_add_(many, 2.0)
        torch._foreach_mul_(many, [3.0, 0.5])
        return [x, rows, columns, target, *many]

    results = assert_same(work)
    assert results[4].tolist() == [9.0] * 3


def test_factories_copies_and_dtypes() -> None:
    def work() -> list[Any]:
        x = torch.zeros(3, dtype=torch.bool, device="tpu")
        y = torch.full((2, 3), 4, device="tpu").to(torch.float64)
        z = torch.arange(6).to("tpu").reshape(2, 3)
        z.copy_(torch.ones(3))
        w = torch.empty_like(y).copy_(z)
        w[0] = torch.tensor([1.5, 2.5, 3.5])
        return [~x, x.any().item(), y, z.clone(), w, w.tolist(), bool((w > 0).all()), (w > 2).nonzero(), w[w > 2]]

    assert_same(work)


def test_random_numbers() -> None:
    def work() -> list[Tensor]:
        x = torch.ones(40, device="tpu")
        generator = torch.Generator("tpu").manual_seed(5)
        return [
            torch.rand(7, device="tpu"),
            torch.randn(3, 4, device="tpu", generator=generator),
            F.dropout(x, 0.3),
            torch.randint(0, 100, (9,), device="tpu"),
            torch.randperm(12, device="tpu"),
            torch.empty(5, device="tpu").uniform_(2, 3),
            torch.bernoulli(x * 0.5),
            torch.multinomial(x, 6),
            torch.normal(x, 2.0),
        ]

    assert_same(work)


# -- models


class Block(nn.Module):
    """A block of a transformer, causal, with dropout."""

    def __init__(self, width: int = 16, heads: int = 2, checkpointed: bool = False):
        super().__init__()
        self.heads, self.checkpointed = heads, checkpointed
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        attended: Any = checkpoint(self.attention, x, use_reentrant=False) if self.checkpointed else self.attention(x)
        x = x + attended
        return x + self.mlp(self.norms[1](x))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "block": (Block, (2, 6, 16)),
    "checkpointed block": (lambda: Block(checkpointed=True), (2, 6, 16)),
    "convolutions": (convolutions, (4, 3, 8, 8)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    # a large eps, since AdamW divides by the size of the gradient, which amplifies the last bit of a gradient near 0
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3),
}


def train(model: nn.Module, shape: tuple[int, ...], optimizer: str, bf16: bool = False) -> list[Tensor]:
    """Train for five steps and return the losses, then the state of the model."""
    model = copy.deepcopy(model).to("tpu").train()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    x, losses = torch.randn(shape).to("tpu"), list[Tensor]()
    for _ in range(5):
        with torch.autocast("tpu", torch.bfloat16, enabled=bf16):
            loss = model(x).float().square().mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.detach())
        stepper.zero_grad()
        lazytpu.mark_step()
    return [*losses, *model.state_dict().values()]


@pytest.mark.parametrize(
    ("name", "optimizer", "bf16"),
    [
        pytest.param("block", "adamw", False, marks=pytest.mark.long),
        pytest.param("checkpointed block", "sgd", True, marks=pytest.mark.long),
        ("convolutions", "adamw", False),
    ],
)
def test_training(name: str, optimizer: str, bf16: bool) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    tolerance = 2e-3 if bf16 else 2e-5
    results = assert_same(lambda: train(model, shape, optimizer, bf16), rtol=tolerance, atol=tolerance / 10)
    assert all(bool(t.isfinite().all()) for t in results)
    assert results[4] < results[0]
