"""Writes to vLLM's paged cache of keys and values, as ops of torch that join the program of the step.

vLLM's own are a kernel of CUDA and one of Triton. A cache is a table of blocks; the slot of a token is
`block * size of a block + place in it`, and -1 for padding.
"""

from __future__ import annotations

from typing import Any

import torch

_cache_ops = torch.library.Library("_C_cache_ops", "FRAGMENT")
_WRITE = (
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)


def install() -> None:
    """Register the writes under the names that vLLM calls. Block tables made afterwards compute slots by `Slots`."""
    from vllm.v1.worker import block_table

    if not hasattr(torch.ops._C_cache_ops, "reshape_and_cache_flash"):
        _cache_ops.define(_WRITE)
        _cache_ops.impl("reshape_and_cache_flash", write, "PrivateUse1")
    block_table._COMPUTE_SLOT_MAPPING_KERNEL = Slots()  # pyright: ignore


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    *scales: torch.Tensor,
) -> None:
    """Write keys and values into their slots. Padding goes to block 0, which vLLM gives to no request."""
    if kv_cache_dtype.startswith("fp8"):
        raise NotImplementedError(f"the cache has the model's dtype here, not {kv_cache_dtype}")
    size, count = key_cache.shape[1], slot_mapping.shape[0]
    slots = slot_mapping.clamp(min=0)
    where = slots // size, slots % size
    key_cache.index_put_(where, key[:count])
    value_cache.index_put_(where, value[:count])


class Slots:
    """The slots of the tokens of a step. The result has the size of the buffers, so that programs do too."""

    def register_warmup(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is compiled for it alone."""

    def __call__(
        self,
        requests: int,
        tokens: int,
        capacity: int,
        starts: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        stride: int,
        block: int,
        out: torch.Tensor,
        *rest: Any,
    ) -> None:
        order = torch.arange(tokens, device=out.device)
        after = torch.searchsorted(starts[: requests + 1], order.to(starts.dtype), right=True)
        request = (after - 1).clamp(0, requests - 1)
        slots = table[request, positions // block].long() * block + positions % block
        out.fill_(-1)
        out[:tokens] = torch.where(order < starts[requests], slots, -1)
