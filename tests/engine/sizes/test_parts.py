"""Parts of a tensor whose sizes depend on values, such as the tokens of each expert, share programs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F

import lazytpu

EXPERTS, WIDTH, TOKENS = 6, 8, 60
ROUTING = (
    [10, 12, 8, 9, 11, 10],
    [8, 15, 6, 13, 7, 11],
    [30, 2, 8, 9, 4, 7],
    [3, 11, 19, 2, 23, 2],
    [16, 9, 10, 8, 12, 5],
)
"""The tokens of each expert in each step."""
Experts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def by_split(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Split the sorted tokens by their counts, which are read from the device."""
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=EXPERTS).tolist()
    parts = x[order].split(counts)
    products = torch.cat([F.silu(part @ weight) for part, weight in zip(parts, weights.unbind(), strict=True)])
    return torch.empty_like(products).index_copy(0, order, products)


def by_slices(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Slice the sorted tokens and their scales, and write each product into its slice of the result."""
    order = expert.argsort(stable=True)
    counts = torch.histc(expert.float(), EXPERTS, 0, EXPERTS - 1).int().tolist()
    tokens, ends = x[order], list(accumulate(counts))
    scales = tokens[:, 0].exp()
    products = torch.zeros_like(tokens)
    for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
        part = slice(end - count, end)
        products[part] = F.silu(tokens[part] @ weights[number]) * scales[part, None]
    return torch.empty_like(products).index_copy(0, order, products)


def by_masks(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Look up the tokens of each expert, and add their products at these places."""
    result = torch.zeros_like(x)
    for number in range(EXPERTS):
        (places,) = torch.where(expert == number)
        result.index_add_(0, places, F.silu(x[places] @ weights[number]))
    return result


def by_boolean_masks(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Read and write the tokens of each expert at a mask."""
    result = torch.zeros_like(x)
    for number in range(EXPERTS):
        mask = expert == number
        result[mask] = F.silu(x[mask] @ weights[number])
    return result


def columns(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Split the columns of a transposed tensor."""
    order = expert.argsort(stable=True)
    parts = x[order].t().contiguous().split(torch.bincount(expert, minlength=EXPERTS).tolist(), 1)
    products = torch.cat([F.silu(weight.t() @ part) for part, weight in zip(parts, weights.unbind(), strict=True)], 1)
    return torch.empty_like(x).index_copy(0, order, products.t())


def compiled_by_steps(experts: Experts, routing: tuple[list[int], ...]) -> list[int]:
    """Run steps, compare their results and gradients with the CPU's, and return the number of programs of each."""
    compiled = list[int]()
    for step, counts in enumerate(routing):
        generator = torch.Generator().manual_seed(step)
        # In float64, sums in another order agree closely.
        x = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        weights = torch.randn(EXPERTS, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        expert = torch.arange(EXPERTS).repeat_interleave(torch.tensor(counts))
        expert = expert[torch.randperm(TOKENS, generator=generator)]
        before, results = lazytpu.metrics()["compiles"], list[tuple[torch.Tensor, ...]]()
        for device in ("cpu", "tpu"):
            inputs = [tensor.detach().to(device).requires_grad_() for tensor in (x, weights)]
            output = experts(inputs[0], inputs[1], expert.to(device))
            output.square().sum().backward()
            lazytpu.mark_step()
            gradients = [tensor.grad.cpu() for tensor in inputs if tensor.grad is not None]
            results.append((output.detach().cpu(), *gradients))
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(theirs, mine)
        compiled.append(lazytpu.metrics()["compiles"] - before)
    return compiled


def with_rows_reversed(x: torch.Tensor, weights: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
    """Multiply each part by its counterpart in another arrangement of the same storage."""
    tokens = x[expert.argsort(stable=True)]
    counts = torch.bincount(expert, minlength=EXPERTS).tolist()
    ends = list(accumulate(counts))
    sums = [
        tokens[end - count : end] * tokens.as_strided((count, WIDTH), (1, WIDTH), end - count)
        for end, count in zip(ends, counts, strict=True)
    ]
    return torch.cat([part @ weight for part, weight in zip(sums, weights.unbind(), strict=True)])


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_views_in_two_arrangements_of_one_storage_are_right() -> None:
    compiled_by_steps(with_rows_reversed, ROUTING[:3])


@pytest.mark.parametrize("experts", [by_split, by_slices, by_masks, columns])
@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_routing_of_later_steps_compiles_nothing(experts: Experts) -> None:
    compiled = compiled_by_steps(experts, ROUTING)
    assert sum(compiled) <= 8
    assert compiled[2:] == [0] * (len(ROUTING) - 2)


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_experts_by_masks_share_programs_with_none_and_one_token() -> None:
    compiled = compiled_by_steps(by_boolean_masks, (*ROUTING[:3], [0, 30, 1, 9, 0, 20], ROUTING[3]))
    assert sum(compiled[:3]) <= 8
    assert compiled[4] == 0
