"""Static numbers that vary become run-time numbers: at most two programs, with the values of static ones (R3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lazytpu
from lazytpu.aten import registry
from lazytpu.frontend.recording import specialization
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.trie import Number

pytestmark = pytest.mark.usefixtures("fresh_traces")


def programs_made() -> int:
    """Return how many programs were compiled or loaded."""
    explained = lazytpu.explain()
    return len(explained) + explained.forgotten


def programs(step: Callable[[Any], Any], values: Sequence[Any]) -> list[int]:
    """Return the number of programs after each step with one of `values`."""
    before, counts = programs_made(), []
    for value in values:
        result = step(value)
        lazytpu.mark_step()
        del result
        counts.append(programs_made() - before)
    return counts


X = torch.tensor([[-2.5, -1.0, -0.0, 0.0], [0.3, 1.0, 2.0, inf], [-inf, nan, 1e-3, 7.5]])
POSITIVE = torch.tensor([[0.1, 0.7, 1.0], [1.5, 2.0, 9.0]])

# (description of the number, tensor, values; each can be passed on the CPU as well)
CASES: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], torch.Tensor, Sequence[Any]]] = {
    "pow": (lambda x, p: x.pow(p), X, [2.5, 4.0, 2.0, 3.0, 0.5, 1.0, 0.0, 2.5, 7.25, inf]),
    "pow below 0": (lambda x, p: x.pow(p), X, [-1.5, -3.0, -0.5, -1.0, -2.0]),
    "pow of halves": (lambda x, p: x.bfloat16().pow(p), POSITIVE, [2.5, 4.0, 3.0, 2.0, 0.5]),
    "pow of integers": (lambda x, p: x.long().pow(p), POSITIVE * 3, [3, 5, 2, 1, 0, 4]),
    "pow of foreach": (lambda x, p: torch._foreach_pow([x, x + 1], p)[1], X, [2.5, 3.0, 2.0]),
    "pow of lists": (lambda x, p: torch._foreach_pow([x, x + 1], [p, p + 1])[1], X, [2.5, 3.0, 2.0]),
    "layer_norm": (lambda x, eps: F.layer_norm(x, (3,), eps=eps), POSITIVE, [1e-5, 1e-2, 0.5, 1e-5]),
    "group_norm": (lambda x, eps: F.group_norm(x[None], 1, eps=eps), POSITIVE, [1e-5, 1e-2, 0.5]),
    "batch_norm": (lambda x, eps: F.batch_norm(x, None, None, training=True, eps=eps), POSITIVE, [1e-5, 0.1, 0.5]),
    "norm": (torch.linalg.vector_norm, POSITIVE, [3.0, 2.5, 2.0, 1.0, 0.0, 4.0]),
    "variance": (lambda x, c: x.var(1, correction=c), POSITIVE, [1, 0, 2, 1]),
    "deviation": (lambda x, c: torch.std_mean(x, 1, correction=c)[0], POSITIVE, [1, 0, 2]),
    "huber": (lambda x, d: F.huber_loss(x, x * 0, delta=d), POSITIVE, [0.5, 1.0, 1.5, 20.0]),
    "smooth L1": (lambda x, d: F.smooth_l1_loss(x, x * 0, beta=d), POSITIVE, [0.5, 1.0, 1.5, 20.0]),
    "arange": (lambda x, n: torch.arange(n, n + 5, device=x.device) * 2, POSITIVE, [0, 1, 2, 3, 100]),
    "arange by steps": (lambda x, n: torch.arange(0, 4 * n, n, device=x.device) + 0.5, POSITIVE, [1, 2, 3, 5]),
    "attention": (
        lambda x, s: F.scaled_dot_product_attention(*[(x * n)[None, None] for n in (1, 2, 3)], scale=s),
        POSITIVE,
        [0.5, 0.25, 1.0],
    ),
}
# Numbers that are arguments from the first value on.
RUN_TIME: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], torch.Tensor, Sequence[Any]]] = {
    "rms_norm": (lambda x, eps: F.rms_norm(x, (3,), eps=eps), POSITIVE, [1e-5, 1e-2, 0.5]),
    "nan_to_num": (lambda x, n: x.nan_to_num(n, 2 * n, -n), X, [0.5, 1.0, 2.0]),
    "clamp": (lambda x, n: x.clamp(-n, n), X, [0.5, 1.0, -0.0]),
    "elu": (lambda x, n: F.elu(x, alpha=n), X, [0.5, 1.0]),
    "leaky_relu": (F.leaky_relu, X, [0.5, 0.1]),
    "softplus": (lambda x, n: F.softplus(x, beta=n), POSITIVE, [0.5, 2.0]),
    "label smoothing": (
        lambda x, n: F.cross_entropy(x, torch.tensor([1, 2], device=x.device), label_smoothing=n),
        POSITIVE,
        [0.1, 0.2, 0.3],
    ),
}


def compared(function: Callable[[torch.Tensor, Any], torch.Tensor], x: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """Return a step that passes x and a number to a function on the device, and compares the result with the CPU's."""
    on_tpu = x.to("tpu")

    def step(value: Any) -> torch.Tensor:
        result = function(on_tpu, value)
        torch.testing.assert_close(result.cpu(), function(x, value), equal_nan=True, rtol=1e-5, atol=1e-6)
        return result

    return step


@pytest.mark.parametrize("name", CASES)
def test_a_number_that_varies_makes_two_programs_with_the_values_of_the_cpu(name: str) -> None:
    function, x, values = CASES[name]
    step = compared(function, x)
    assert programs(step, values)[-1] <= 2
    assert programs(step, values)[-1] == 0, "no value compiles again, the first included"


@pytest.mark.parametrize("name", RUN_TIME)
def test_numbers_that_are_arguments_from_the_first_value_on(name: str) -> None:
    function, x, values = RUN_TIME[name]
    assert programs(compared(function, x), values)[-1] == 1


def taken_at_run_time() -> bool:
    """Return whether a pending op takes its specialized number at run time."""
    for record in recorder().state.records():
        rule = registry.load().get(str(record.op))
        for name in () if rule is None else rule.specialized:
            value = record.arguments.get(name)
            if isinstance(value, Number) or (isinstance(value, list) and isinstance(value[0], Number)):
                return True
    return False


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("arange")])
def test_run_time_numbers_give_the_bits_that_static_ones_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specialization, "_varied", set())
    function, x, values = CASES[name]
    chain, static = x.to("tpu"), []
    for value in values:
        chain = chain * 1  # a separate state for each value, so that none is seen to vary
        static.append(function(chain, value))
        assert not taken_at_run_time()
    expected = [reference.cpu() for reference in static]
    on_tpu = x.to("tpu")
    for value in values[:2]:
        function(on_tpu, value).cpu()
    for value, reference in zip(values, expected, strict=True):
        result = function(on_tpu, value)
        assert taken_at_run_time()
        actual = result.cpu()
        torch.testing.assert_close(actual, reference, rtol=0, atol=0, equal_nan=True)
        assert bool(((actual.signbit() == reference.signbit()) | reference.isnan()).all())


def test_gradients() -> None:
    data = torch.tensor([0.5, 1.5, 2.0])

    def gradient(device: str, p: float) -> torch.Tensor:
        x = data.clone().to(device).requires_grad_()
        F.huber_loss(x.pow(p), x * 0, delta=p / 4).backward()
        assert x.grad is not None
        return x.grad

    def step(p: float) -> torch.Tensor:
        result = gradient("tpu", p)
        lazytpu.mark_step()
        torch.testing.assert_close(result.cpu(), gradient("cpu", p))
        return result

    values = [2.5, 3.5, 1.5, 2.0, 3.0, 2.5]
    assert programs(step, values)[1:] == [2] * 5, "numbers that vary together are generalized together"
    assert programs(step, values)[-1] == 0


def test_equal_values_of_different_numbers_never_merge() -> None:
    x = torch.tensor([1.5, 2.0]).to("tpu")

    def step(exponents: tuple[float, float]) -> torch.Tensor:
        p, q = exponents
        result = x.pow(p).add(1).pow(q)
        torch.testing.assert_close(result.cpu(), torch.tensor([1.5, 2.0]).pow(p).add(1).pow(q))
        return result

    values = [(2.5, 2.5), (3.5, 3.5), (1.5, 3.5), (3.5, 1.5), (2.5, 2.5)]
    assert programs(step, values)[1:] == [2] * 4


def test_a_number_beside_it_that_stays_is_static_still() -> None:
    x = torch.tensor([1.5, 2.0]).to("tpu")

    def step(p: float) -> torch.Tensor:
        return (x.pow(p) + 1).pow(2)

    programs(step, [2.5, 3.5, 4.5])
    text = lazytpu.graphs()[-1].text()
    assert text.count("lazytpu.pow") == 1, "the square is a product"


def test_another_shape_begins_with_the_run_time_number() -> None:
    def step(size: int, p: float) -> torch.Tensor:
        return torch.ones(size, device="tpu").exp().pow(p)

    assert programs(lambda p: step(5, p), [2.5, 3.5, 4.5])[-1] == 2
    assert programs(lambda p: step(3, p), [2.5, 3.5, 4.5])[-1] == 1


def test_the_type_of_a_number_stays_part_of_the_program() -> None:
    x = torch.arange(4).to("tpu")
    for p in (2, 3, 2.0, 3.0, 5, 5.0, True):
        result = x.pow(p)
        assert result.dtype == torch.arange(4).pow(p).dtype
        torch.testing.assert_close(result.cpu(), torch.arange(4).pow(p))


def test_numbers_that_torch_rejects_are_rejected_at_run_time() -> None:
    x = torch.arange(1, 5).to("tpu")
    for p in (2, 3, 4):
        x.pow(p).tolist()
    with pytest.raises(RuntimeError, match="negative integer powers"):
        x.pow(-1)
    y = torch.ones(3).to("tpu")
    for delta in (0.5, 1.5, 2.5):
        F.huber_loss(y, y, delta=delta).item()
    with pytest.raises(RuntimeError, match="non-positive values for delta"):
        F.huber_loss(y, y, delta=0.0)
    empty = torch.ones(0, 3).to("tpu")
    for order in (2.5, 3.5, 4.5):
        torch.linalg.vector_norm(empty, order, dim=0).tolist()
    with pytest.raises(RuntimeError, match="cannot compute the inf norm"):
        torch.linalg.vector_norm(empty, inf, dim=0)
    assert x.pow(3).tolist() == [1, 8, 27, 64]


def test_a_generalized_number_is_explained() -> None:
    x = torch.tensor([1.5, 2.0]).to("tpu")

    def step(p: float) -> torch.Tensor:
        return x.sinh().pow(p)

    programs(step, [2.5, 3.5])
    explained = lazytpu.explain()[-1]
    assert (explained.code, explained.hint, explained.recompile) == ("static-scalar", "generalized", 0)
    assert "was 2.5, is <float> (a number that changes: from now on it is an argument of the program)" in explained.text


def test_strict_mode() -> None:
    x = torch.tensor([1.5, 2.0]).to("tpu")
    with lazytpu.mode("strict"):
        for p in (2.5, 3.5, 2.0, 4.5):
            torch.testing.assert_close(x.pow(p).cpu(), torch.tensor([1.5, 2.0]).pow(p))
    compiles = lazytpu.metrics()["compiles"]
    with lazytpu.mode("strict"):
        torch.testing.assert_close(x.pow(6.5).cpu(), torch.tensor([1.5, 2.0]).pow(6.5))
    assert lazytpu.metrics()["compiles"] == compiles
