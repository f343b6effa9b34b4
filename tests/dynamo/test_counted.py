"""Graphs with data-dependent sizes: one program for all counts, and no count is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import lazytpu
from tests.dynamo.counting import mask

pytestmark = pytest.mark.usefixtures("captured")


def steps(f: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Return a function's result, and the number of steps that it takes."""
    moved = [a.to("tpu") for a in args]
    lazytpu.mark_step()
    before = lazytpu.metrics()["steps"]
    result = f(*moved)
    lazytpu.mark_step()
    return result, int(lazytpu.metrics()["steps"] - before)


def trained(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    logits = x @ w
    chosen = functional.cross_entropy(logits[m], labels[m]) + logits[m].square().mean()
    return chosen + logits[~m].abs().sum() / m.shape[0]


def test_a_loss_of_chosen_rows_and_its_gradients():
    torch.manual_seed(0)
    f, before = torch.compile(trained), len(lazytpu.explain())

    def step(*args: torch.Tensor) -> list[torch.Tensor]:
        x, w, *operands = args
        w = w.detach().requires_grad_()
        loss = f(x, w, *operands)
        loss.backward()
        assert w.grad is not None
        return [loss.detach(), w.grad]

    for count in (5, 1, 15, 0):
        x, w, labels, m = torch.randn(16, 4), torch.randn(4, 3), torch.randint(0, 3, (16,)), mask(count)
        w.requires_grad_()
        want = trained(x, w, labels, m)
        want.backward()
        got, took = steps(step, x, w.detach(), labels, m)
        assert took == 1
        torch.testing.assert_close([t.cpu() for t in got], [want.detach(), w.grad], equal_nan=True)
    assert len(lazytpu.explain()) == before + 1


def test_a_count_as_a_number_and_a_maximum_of_nothing():
    f = torch.compile(lambda x, m: (x[m].sum() / x[m].shape[0], (x[m] * 2.5).max()))
    for count in (4, 9):
        x, m = torch.randn(16), mask(count)
        got, took = steps(f, x, m)
        assert took == 1
        torch.testing.assert_close([t.cpu() for t in got], [x[m].mean(), (x[m] * 2.5).max()])
    got, _ = steps(f, torch.randn(16), mask(0))
    with pytest.raises(RuntimeError, match=r"max\(\): Expected reduction dim"):
        got[1].cpu()


def test_deviations_medians_and_norms_of_nothing_are_as_on_the_cpu():
    f = torch.compile(lambda x, m: (x[m].std(), x[m].median()))
    for count in (4, 0):
        x, m = torch.randn(16), mask(count)
        got, took = steps(f, x, m)
        assert took == 1
        want = x[m].std() if count else torch.tensor(torch.nan), x[m].median()
        torch.testing.assert_close([t.cpu() for t in got[:2]], list(want), equal_nan=True)


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": torch.amax,
    "argmax": torch.argmax,
    "median": lambda x: x.median(0).values,
    "norm": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "first": lambda x: x[0],
    "quantile": lambda x: x.quantile(0.3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ops_on_nothing_raise_the_errors_of_the_cpu(name: str):
    f = REFUSED[name]
    compiled = torch.compile(lambda x, m: f(x[m]))
    x, m = torch.rand(16), mask(5)
    got, _ = steps(compiled, x, m)
    torch.testing.assert_close(got.cpu(), f(x[m]))
    with pytest.raises((RuntimeError, IndexError)) as expected:
        f(x[:0])
    with pytest.raises(expected.type) as raised:
        compiled(x.to("tpu"), mask(0).to("tpu")).cpu()
    if name not in ("quantile", "first"):  # which torch decomposes
        assert str(expected.value)[:30] in str(raised.value)


def test_indices_of_nothing_have_the_strides_of_the_cpu():
    for x in (torch.zeros(3, 4), torch.zeros(0, 2), torch.zeros(()), torch.ones(())):
        assert x.to("tpu").nonzero().stride() == x.nonzero().stride()


def test_assertions_on_a_count_are_checked():
    def few(x: torch.Tensor) -> torch.Tensor:
        chosen = x[x > 0]
        torch._check(chosen.shape[0] <= 2)
        return chosen.sum()

    def many(x: torch.Tensor) -> torch.Tensor:
        chosen = x[x > 0]
        torch._check(chosen.shape[0] >= 3)
        return chosen.sum()

    x = torch.tensor([1.0, -2.0, -3.0, -4.0]).to("tpu")
    assert torch.compile(few)(x).item() == 1
    with pytest.raises(RuntimeError, match="u0 >= 3"):
        torch.compile(many)(x).cpu()


def test_assertions_on_two_counts_are_checked():
    def more(x: torch.Tensor) -> torch.Tensor:
        chosen, negative = x[x > 0], x[x < 0]
        torch._check(chosen.shape[0] >= negative.shape[0])
        return chosen.sum() + negative.sum()

    with pytest.raises(RuntimeError, match="u0"):
        torch.compile(more)(torch.tensor([1.0, -2.0, -3.0, -4.0]).to("tpu")).cpu()


def test_indices_that_are_only_written_at():
    f = torch.compile(lambda x, m: torch.zeros(16, device=x.device).index_add_(0, m.nonzero().reshape(-1), x[m]))
    for count in (4, 0):
        x, m = torch.randn(16), mask(count)
        got, took = steps(f, x, m)
        assert took == 1
        torch.testing.assert_close(got.cpu(), x * m)


@pytest.mark.parametrize("buckets", ["auto", "off"])
def test_a_count_that_torch_has_to_know_is_read(buckets: str):
    f = torch.compile(lambda x, m: x[m] if buckets == "auto" else x[m].sum())
    x, m = torch.randn(16), mask(5)
    with lazytpu.options(buckets=buckets):
        got, took = steps(f, x, m)
    assert took == 2
    torch.testing.assert_close(got.cpu(), x[m] if buckets == "auto" else x[m].sum())


COUNTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "two masks": lambda x, m: x[m].sum() + x[~m].square().sum(),
    "a mask of two dimensions": lambda x, m: x.reshape(4, 4)[m.reshape(4, 4)].square().sum(),
    "indices of two dimensions": lambda x, m: (m.reshape(4, 4).nonzero()[:, 1] * 3).sum(),
    "a mask of columns": lambda x, m: x.reshape(1, 16)[:, m].sum(1),
    "rows and columns": lambda x, m: x.reshape(4, 4)[m[:4]][:, m[4:8]].sum(),
    "masked_select": lambda x, m: torch.masked_select(x, m).square().sum(),
    "a write at a mask": lambda x, m: torch.where(m, x, 0).index_put((m,), x[m] * 2),
    "a transposed copy": lambda x, m: x.reshape(4, 4)[m[:4]].t().contiguous().cumsum(1).sum(),
    "at least one": lambda x, m: x[m].sum() / max(x[m].shape[0], 1),
    "sums and products of counts": lambda x, m: x[m].sum() * x[m].shape[0] + x[m].shape[0] * x[~m].shape[0],
    "strides of counts": lambda x, m: (x[m][:, None] - x[~m][None]).t().abs().sum(),
}


@pytest.mark.parametrize("name", COUNTED)
def test_function_of_counted_sizes_is_one_step(name: str):
    f = torch.compile(COUNTED[name])
    for count in (5, 1, 0, 16):
        x, m = torch.randn(16), mask(count)
        got, took = steps(f, x, m)
        assert took == 1
        torch.testing.assert_close(got.cpu(), COUNTED[name](x, m), equal_nan=True)


READ: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a number that is given": lambda x, m: x[m].sum() * (x[m].shape[0] // 2),
    "a least size": lambda x, m: x[m][: x[m].shape[0] // 2].sum(),
    "an op of several records": lambda x, m: torch.logsumexp(x[m], 0),
}


@pytest.mark.parametrize("name", READ)
def test_number_without_a_form_of_counts_is_read(name: str):
    f = torch.compile(READ[name])
    for count in (5, 9, 1):
        x, m = torch.randn(16), mask(count)
        got, _ = steps(f, x, m)
        torch.testing.assert_close(got.cpu(), READ[name](x, m))


def test_count_that_has_to_be_a_size_is_compared_with_it():
    f = torch.compile(lambda x, m, y: (x[m] + y).sum())
    x, y = torch.randn(16), torch.randn(16)
    for count in (16, 1):
        m = mask(count)
        torch.testing.assert_close(f(x.to("tpu"), m.to("tpu"), y.to("tpu")).cpu(), (x[m] + y).sum())
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        f(x.to("tpu"), mask(3).to("tpu"), y.to("tpu")).cpu()


def test_rows_of_a_dynamic_width_are_counted():
    f = torch.compile(lambda x, m: (x[m] * 2.5).sum(0), dynamic=True)
    for count, width in ((5, 3), (0, 3), (1, 4), (16, 4)):
        x, m = torch.randn(16, width), mask(count)
        got, took = steps(f, x, m)
        assert took == 1
        torch.testing.assert_close(got.cpu(), (x[m] * 2.5).sum(0))


def test_sizes_of_arguments_may_vary():
    f = torch.compile(lambda x, m: x[m].square().sum() / x.shape[1], dynamic=True)
    for size in (4, 6, 9):
        x, m = torch.randn(size, 5), torch.rand(size, 5) > 0.5
        got, took = steps(f, x, m)
        assert took == 1
        torch.testing.assert_close(got.cpu(), x[m].square().sum() / 5)


def test_compiled_classes_are_looked_at():
    one_hot = torch.compile(lambda x: functional.one_hot(x, 3))
    classes = torch.tensor([0, 2, 1])
    assert torch.equal(one_hot(classes.to("tpu")).cpu(), functional.one_hot(classes, 3))
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        one_hot(torch.tensor([0, 3, 1]).to("tpu")).cpu()


def _one_order(x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    first = y[: m.nonzero().shape[0]]
    return (first - x[: m.nonzero().shape[0]]).sum()


def _other_order(x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    second = x[: m.nonzero().shape[0]]
    return (y[: m.nonzero().shape[0]] - second).sum()


def test_functions_that_take_their_arguments_in_another_order_are_others():
    """They have equal records, which refer to other arguments."""
    x, y, m = torch.rand(16), torch.rand(16), mask(5)
    for function in (_one_order, _other_order):
        result, _ = steps(torch.compile(function), x, y, m)
        torch.testing.assert_close(result.cpu(), function(x, y, m))
    rows = torch.rand(16, 4)
    for function in (lambda x, m: x[m].square().sum(), lambda x, m: x[m.nonzero()[:, 0]].square().sum()):
        result, _ = steps(torch.compile(function), rows, m)
        torch.testing.assert_close(result.cpu(), function(rows, m))


NUMBERS: dict[str, Callable[..., Any]] = {
    "number": lambda x, m: (x[m].sum(), x[m].shape[0] % 16 // 2),
    "number of a refused count": lambda x, m: (x[m].max(), x[m].shape[0] % 5),
    "view": lambda x, m: torch.zeros_like(x).index_add(0, m.nonzero()[:, 0], x[m])[: m.nonzero().shape[0] % 16 // 2],
    "dtype": lambda x, m: x[m].int().amax() + x[m].shape[0],
    "small dtype": lambda x, m: x[m].to(torch.uint8).amax() * x[m].shape[0],
}
"Functions whose results depend on a count otherwise than through the values of tensors."


@pytest.mark.parametrize("name", NUMBERS)
def test_results_that_depend_on_a_count(name: str):
    function = NUMBERS[name]
    compiled = torch.compile(function)
    for count in (6, 16, 1, 9):
        x, m = torch.rand(16), mask(count)
        got, want = compiled(x.to("tpu"), m.to("tpu")), function(x, m)
        torch.testing.assert_close(got, want, check_device=False)
