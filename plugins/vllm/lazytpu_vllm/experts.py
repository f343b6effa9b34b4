"""Mixtures of experts in ops of torch: the choice of each token's experts, and their layers as grouped products, whose
sizes depend on the number of tokens alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

GATES = {
    MoEActivation.SILU: F.silu,
    MoEActivation.GELU: F.gelu,
    MoEActivation.GELU_TANH: partial(F.gelu, approximate="tanh"),
}


def install() -> None:
    """Let routers choose experts by `choose`, since vLLM's kernels for it are CUDA's."""
    _custom_ops.topk_softmax = partial(choose, partial(torch.softmax, dim=-1))
    _custom_ops.topk_sigmoid = partial(choose, torch.sigmoid)


def choose(
    score: Any,
    weights: torch.Tensor,
    experts: torch.Tensor,
    places: torch.Tensor,
    logits: torch.Tensor,
    renormalize: bool = False,
    bias: torch.Tensor | None = None,
    factor: float = 1.0,
    is_padding: torch.Tensor | None = None,
) -> None:
    """Write the experts of the greatest scores, [tokens, experts of a token], and their scores. `bias` counts in the
    choice alone. Tokens of padding have experts as others do."""
    scores = score(logits.float())
    chosen = (scores if bias is None else scores + bias).topk(experts.shape[1]).indices
    taken = scores.gather(1, chosen)
    if renormalize:
        taken = taken / taken.sum(-1, keepdim=True)
    weights.copy_(taken * factor)
    experts.copy_(chosen)


@UnquantizedFusedMoEMethod.register_oot
class Experts(UnquantizedFusedMoEMethod):
    """The layers of the experts of a layer of the model."""

    @property
    def is_monolithic(self) -> bool:
        return False

    def forward_oot(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the sum of each token's experts, [tokens, width], weighted. The shared experts have run before."""
        limits = getattr(layer, "swiglu_limit", None), self.moe.swiglu_limit
        if layer.activation not in GATES or layer.expert_map is not None or limits != (None, None):
            raise NotImplementedError(
                f"lazytpu-vllm has no experts with {layer.activation}, a limit of it, or on several devices; "
                f"add the activation to lazytpu_vllm/experts.py, which has {', '.join(gate.name for gate in GATES)}"
            )
        count, each = len(layer.w13_weight), topk_ids.shape[1]
        # Order the tokens by expert.
        expert = topk_ids.flatten().long()
        order = expert.argsort(stable=True)
        token, expert, weight = order // each, expert[order], topk_weights.flatten()[order, None]
        ends = F.one_hot(expert, count).sum(0).cumsum(0).int()
        rows = x[token]
        if layer.apply_router_weight_on_input:
            rows = rows * weight.to(x.dtype)
        # Run them through the experts' two layers.
        gate, up = self._product(rows, layer.w13_weight, "w13_bias", layer, expert, ends).chunk(2, -1)
        results = self._product(GATES[layer.activation](gate) * up, layer.w2_weight, "w2_bias", layer, expert, ends)
        if not layer.apply_router_weight_on_input:
            results = results * weight
        return torch.zeros(x.shape, dtype=results.dtype, device=x.device).index_add(0, token, results).to(x.dtype)

    def _product(
        self, rows: torch.Tensor, weights: torch.Tensor, bias: str, layer: Any, expert: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        product = F.grouped_mm(rows, weights.transpose(1, 2), offs=ends)
        return product + getattr(layer, bias)[expert] if self.moe.has_bias else product
