"""Attention to vLLM's paged cache by lazytpu's kernel for pages: prompts and next tokens in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import KVCacheLayout

from lazytpu.kernels.ragged_paged_attention import ragged_paged_attention
from lazytpu_vllm import cache


@dataclass
class Step:
    """The requests of a step. The tensors are those of all requests that may run at once, so that programs have one
    size however many do."""

    lengths: torch.Tensor  # i32 [requests], 0 after the last one
    table: torch.Tensor  # i32 [requests, blocks of a request]
    ends: torch.Tensor  # i32 [requests + 1]
    count: torch.Tensor  # i32 [1]


class StepBuilder(AttentionMetadataBuilder[Step]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # abstract in vLLM
        super().__init__(*args, **kwargs)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Step:
        step = common_attn_metadata
        lengths, table, ends = (cache.whole(x) for x in (step.seq_lens, step.block_table_tensor, step.query_start_loc))
        count = (lengths > 0).sum(dtype=torch.int32).reshape(1)
        return Step(lengths, table, ends, count)


class PagedAttention(AttentionImpl[Step]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        if alibi_slopes is not None or kv_sharing_target_layer_name is not None:
            raise NotImplementedError("lazytpu-vllm has no attention with ALiBi, and none that shares a cache")
        self.kv_cache_dtype = kv_cache_dtype
        self.settings = {"scale": float(scale), "sliding_window": sliding_window, "soft_cap": logits_soft_cap or None}

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        cache.write(key, value, _pages(kv_cache), slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Step | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the attention of the tokens, [tokens, heads, width], into `output`, and return it."""
        if attn_metadata is None:  # vLLM measures the memory of a step
            return output.fill_(0)
        step = attn_metadata
        operands = query, _pages(kv_cache), step.lengths, step.table, step.ends, step.count
        return output.copy_(ragged_paged_attention(*operands, **self.settings).view(output.shape))


def _pages(kv_cache: torch.Tensor) -> torch.Tensor:
    """View vLLM's cache, [blocks, heads, tokens of a block, 2 * width], as the kernel's pages, [blocks, tokens of a
    block, 2 * heads, width]: in memory, the key and the value of a head follow each other."""
    blocks, heads, tokens, width = kv_cache.shape
    return kv_cache.transpose(1, 2).view(blocks, tokens, 2 * heads, width // 2)


@register_backend(AttentionBackendEnum.CUSTOM)
class PagedAttentionBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return AttentionBackendEnum.CUSTOM.name

    @staticmethod
    def get_impl_cls() -> type[PagedAttention]:
        return PagedAttention

    @staticmethod
    def get_builder_cls() -> type[StepBuilder]:
        return StepBuilder

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBNHC,)

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]
