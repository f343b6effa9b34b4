"""Losses and their gradients against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


TARGET = torch.tensor([1, 0, -100, 3])


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nll_loss(reduction: int, weighted: bool, dtype: torch.dtype) -> None:
    x = values(4, 5, dtype=dtype).log_softmax(1)
    weight = values(5, dtype=dtype).abs() if weighted else None
    check(A.nll_loss_forward.default, x, TARGET, weight, reduction, -100)
    total = A.nll_loss_forward.default(x, TARGET, weight, reduction, -100)[1]
    grad = values(4, dtype=dtype) if reduction == NONE else torch.tensor(0.7, dtype=dtype)
    check(A.nll_loss_backward.default, grad, x, TARGET, weight, reduction, -100, total)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss2d(reduction: int, weighted: bool) -> None:
    x, target = values(2, 5, 3, 2).log_softmax(1), torch.randint(0, 5, (2, 3, 2))
    weight = values(5).abs() if weighted else None
    check(A.nll_loss2d_forward.default, x, target, weight, reduction, 2)
    total = A.nll_loss2d_forward.default(x, target, weight, reduction, 2)[1]
    grad = values(2, 3, 2) if reduction == NONE else torch.tensor(0.7)
    check(A.nll_loss2d_backward.default, grad, x, target, weight, reduction, 2, total)


def test_one_example_and_none() -> None:
    x = values(5).log_softmax(0)
    for reduction in (NONE, MEAN):
        check(A.nll_loss_forward.default, x, torch.tensor(2), None, reduction, -100)
        grad = torch.tensor(1.0)
        check(A.nll_loss_backward.default, grad, x, torch.tensor(2), None, reduction, -100, grad)
    ignored = torch.full((4,), -100)
    check(A.nll_loss_forward.default, values(4, 5), ignored, None, MEAN, -100)
    check(A.nll_loss_forward.default, values(4, 5), ignored, None, SUM, -100)
    check(A.nll_loss_forward.default, torch.ones(0, 5), torch.ones(0, dtype=torch.int64), None, MEAN, -100)
    check(A.nll_loss_forward.default, values(4, 5), TARGET.abs().clamp(max=3).to(torch.uint8), None, MEAN, -100)


@pytest.mark.parametrize("target", [5, -1])
def test_target_out_of_range_is_an_error(target: int) -> None:
    targets = torch.tensor([0, target])
    with pytest.raises(IndexError, match="out of bounds"):
        A.nll_loss_forward.default(values(2, 5), targets, None, MEAN, -100)
    with pytest.raises(IndexError, match="Target is out of bounds"):
        run(A.nll_loss_forward.default, values(2, 5), targets, None, MEAN, -100, outs=[torch.tensor(0.0)] * 2)


DECOMPOSED: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("mse_loss", (), ()),
    ("smooth_l1_loss", (0.5,), (0.5,)),
    ("huber_loss", (0.5,), (0.5,)),
    ("soft_margin_loss", (), ()),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "last", "last_of_backward"), DECOMPOSED, ids=[d[0] for d in DECOMPOSED])
def test_losses_that_torch_decomposes(name: str, last: Any, last_of_backward: Any, dtype: torch.dtype) -> None:
    x, y = values(4, 5, dtype=dtype), values(5, 4, dtype=dtype).t().contiguous()
    for reduction in (NONE, MEAN, SUM):
        check(getattr(A, name).default, x, y, reduction, *last)
        grad = values(4, 5, dtype=dtype) if reduction == NONE else torch.tensor(0.7, dtype=dtype)
        check(getattr(A, name + "_backward").default, grad, x, y, reduction, *last_of_backward)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_binary_cross_entropy(reduction: int) -> None:
    x, y, weight = values(4, 5).sigmoid(), values(5, 4).t().sigmoid().contiguous(), values(5).abs()
    x[0, 0], x[0, 1] = 0.0, 1.0
    check(A.binary_cross_entropy.default, x, y, None, reduction)
    check(A.binary_cross_entropy.default, x, y, weight, reduction)
    grad = values(4, 5) if reduction == NONE else torch.tensor(0.7)
    check(A.binary_cross_entropy_backward.default, grad, x, y, weight.expand(4, 5).contiguous(), reduction)
    check(A.binary_cross_entropy_with_logits.default, x, y, weight, values(5).abs(), reduction)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin(reduction: int, p: int) -> None:
    x, target = values(4, 5), torch.tensor([1, 0, 4, 3])
    grad = values(4) if reduction == NONE else torch.tensor(0.7)
    op = A.multi_margin_loss_backward.default
    check(A.multi_margin_loss.default, x, target, p, 0.8, None, reduction)
    check(op, grad, x, target, p, 0.8, values(5).abs(), reduction)
    check(op, grad[:1].sum() if reduction == NONE else grad, x[0], target[0], p, 0.8, None, reduction)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_multilabel_margin(reduction: int) -> None:
    x, target = values(3, 4), torch.tensor([[1, 3, -1, 0], [2, -1, -1, -1], [-1, 0, 0, 0]])
    check(A.multilabel_margin_loss_forward.default, x, target, reduction)
    marked = A.multilabel_margin_loss_forward.default(x, target, reduction)[1]
    grad = values(3) if reduction == NONE else torch.tensor(0.7)
    check(A.multilabel_margin_loss_backward.default, grad, x, target, reduction, marked)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_empty_batch(reduction: int) -> None:
    """For example a batch that a filter has emptied."""
    x, target = torch.ones(0, 5), torch.zeros(0, 5, dtype=torch.int64)
    check(A.mse_loss_backward.default, x if reduction == NONE else torch.tensor(0.7), x, x, reduction)
    if reduction == NONE:  # the CPU sums up no memory in particular
        check(A.multilabel_margin_loss_forward.default, x, target, reduction)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradient_of_binary_cross_entropy_at_extreme_probabilities(
    reduction: int, weighted: bool, dtype: torch.dtype
) -> None:
    p = torch.tensor([0.0, 1e-13, 1.6e-9, 0.3, 1 - 1e-9, 1.0, float("nan")], dtype=dtype)
    target = torch.tensor([1, 1, 0.2, 0.3, 0.4, 0, 1], dtype=dtype)
    weight = values(7, dtype=dtype).abs() if weighted else None
    grad = values(7, dtype=dtype) if reduction == NONE else torch.tensor(0.7, dtype=dtype)
    exact = {"rtol": 1e-14, "atol": 0.0} if dtype is torch.float64 else {}
    check(A.binary_cross_entropy_backward.default, grad, p, target, weight, reduction, **exact)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_multi_margin_leaves_out_terms_of_nan(p: int, reduction: int) -> None:
    x, target = values(4, 5), torch.tensor([1, 0, 4, 3])
    x[0, 2], x[1, 0], x[2, 1] = float("nan"), float("nan"), float("-inf")
    check(A.multi_margin_loss.default, x, target, p, 0.8, values(5).abs(), reduction)


@pytest.mark.parametrize(("shape", "targets"), [((5,), ()), ((5,), (1,)), ((1, 5), ()), ((), ()), ((), (1,))], ids=str)
def test_multi_margin_of_one_row_has_the_shape_of_the_target(shape: tuple[int, ...], targets: tuple[int, ...]) -> None:
    check(A.multi_margin_loss.default, values(*shape), torch.zeros(targets, dtype=torch.int64), 1, 1.0, None, NONE)


def test_multi_margin_refuses_a_target_as_the_cpu_does() -> None:
    for device in ("cpu", "tpu"):
        target = torch.tensor([1, 7], device=device)
        with pytest.raises(RuntimeError, match="target out of range"):
            A.multi_margin_loss(values(2, 5).to(device), target).cpu()


def test_zero_gradients_of_multi_margin_loss_have_the_sign_of_the_incoming_one() -> None:
    x, target = torch.tensor([[5.0, 0.0, 4.5], [0.0, 9.0, 0.0]]), torch.tensor([0, 1])
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device, copy=True).requires_grad_()
        loss = torch.nn.functional.multi_margin_loss(leaf, target.to(device), reduction="none")
        loss.backward(torch.tensor([-1.0, -1.0], device=device))
        assert leaf.grad is not None
        results.append(leaf.grad.cpu())
    assert torch.equal(*results) and torch.equal(results[0].signbit(), results[1].signbit())


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_zero_gradients_of_multilabel_margin_loss_have_the_sign_of_the_incoming_one(reduction: str) -> None:
    x, target = torch.tensor([[9.0, 0.0, 0.5], [0.0, 9.0, 0.0]]), torch.tensor([[0, -1, 1], [1, 0, -1]])
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device, copy=True).requires_grad_()
        loss = torch.nn.functional.multilabel_margin_loss(leaf, target.to(device), reduction=reduction)
        loss.backward(torch.full_like(loss, -1.0))
        assert leaf.grad is not None
        results.append(leaf.grad.cpu())
    assert torch.equal(*results) and torch.equal(results[0].signbit(), results[1].signbit())
