"""A mixture of experts whose experts are on different ranks. Each function runs on all ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F

import lazytpu

EXPERTS, WIDTH, TOKENS = 4, 16, 48


class Experts(torch.nn.Module):
    """Sends each token to the rank of its expert, and gets the result back."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.weights = torch.nn.Parameter(
            torch.randn(EXPERTS // dist.get_world_size(), WIDTH, WIDTH, generator=generator)
        )

    def forward(self, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        ranks, own = dist.get_world_size(), len(self.weights)
        order = expert.argsort(stable=True)
        counts = torch.histc(expert.float(), EXPERTS, 0, EXPERTS - 1).int()
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        sent_sizes = counts.view(ranks, -1).sum(1).tolist()
        sizes = received.view(ranks, -1).sum(1).tolist()
        group: Any = dist.group.WORLD
        tokens = functional.all_to_all_single_autograd(x[order], sizes, sent_sizes, group)
        of_token = torch.arange(own, device=x.device).repeat(ranks)
        of_token = of_token.repeat_interleave(received, output_size=sum(sizes))
        by_expert = of_token.argsort(stable=True)
        ends = F.one_hot(of_token, own).sum(0).cumsum(0, dtype=torch.int32)
        products = torch._grouped_mm(tokens[by_expert], self.weights, offs=ends)
        products = torch.zeros_like(products).index_copy(0, by_expert, products)
        products = functional.all_to_all_single_autograd(products, sent_sizes, sizes, group)
        return torch.zeros_like(x).index_copy(0, order, products)


def _batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of a rank and the expert of each, of which the first is chosen ever more often."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    experts = torch.randint(-step, EXPERTS, (TOKENS,), generator=generator).clamp_(min=0)
    return torch.randn(TOKENS, WIDTH, generator=generator), experts


def steps_of_other_routing_share_programs() -> None:
    """Values and gradients are those of all experts on one rank."""
    model = Experts().to("tpu")
    gathered = [torch.empty_like(model.weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, model.weights.detach())
    weights = torch.cat([each.cpu() for each in gathered])
    compiled: list[int] = []
    for step in range(16):
        x, experts = _batch(step % 12, dist.get_rank())
        output = model(x.to("tpu"), experts.to("tpu"))
        output.square().mean().backward()
        assert model.weights.grad is not None
        torch.testing.assert_close(output.cpu(), torch.einsum("tk,tkn->tn", x, weights[experts]))
        gradient = _expected_gradient(step % 12, weights)
        torch.testing.assert_close(model.weights.grad.cpu(), gradient, rtol=1e-4, atol=1e-4)
        model.weights.grad = None
        compiled.append(lazytpu.metrics()["compiles"])
    dist.barrier()
    later = [after - before for before, after in pairwise(compiled[5:])]
    assert sum(later) <= 12, f"programs compiled by each of the last steps: {later}"


def _expected_gradient(step: int, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of this rank's experts from the losses of all ranks."""
    leaf = weights.clone().requires_grad_()
    mine, own = dist.get_rank(), EXPERTS // dist.get_world_size()
    for rank in range(dist.get_world_size()):
        x, experts = _batch(step, rank)
        torch.einsum("tk,tkn->tn", x, leaf[experts]).square().mean().backward()
    assert leaf.grad is not None
    return leaf.grad[mine * own : (mine + 1) * own]
