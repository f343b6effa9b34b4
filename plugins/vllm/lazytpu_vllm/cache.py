"""vLLM's paged cache of keys and values: its memory, and the writes to it, as ops of torch that join the program of the
step.

A cache is a table of blocks; the slot of a token is `block * size of a block + place in it`, and -1 for padding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheLayout
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import block_table, gpu_input_batch, gpu_model_runner
from vllm.v1.worker.utils import allocate_kv_cache


def install() -> None:
    """Let block tables that are made afterwards compute slots by `Slots`, since vLLM's kernel is Triton's, runners
    allocate caches by `allocate`, and both copy whole buffers to the device."""
    block_table._COMPUTE_SLOT_MAPPING_KERNEL = Slots()  # pyright: ignore
    block_table.CpuGpuBuffer = gpu_model_runner.CpuGpuBuffer = Buffer  # pyright: ignore
    gpu_model_runner.allocate_kv_cache = allocate  # pyright: ignore
    gpu_input_batch.copy_slice = copy_rows


def allocate(
    config: KVCacheConfig, device: torch.device, layout: KVCacheLayout, kernel_block_sizes: list[int] | None = None
) -> dict[str, torch.Tensor]:
    """Return the cache of each layer, [blocks, heads, tokens of a block, 2 * width], in memory of its own.

    vLLM's caches are views of one array of bytes. A write to such a view converts the cache of all layers to bytes and
    back, where a write to a layer's own memory changes some rows in place. Layers whose views are the same bytes share
    their memory, as those of several groups do, whose blocks differ. Where views overlap otherwise, vLLM's array is
    kept.
    """
    views = allocate_kv_cache(config, torch.device("meta"), layout, kernel_block_sizes)
    pages = {name: view.transpose(1, 2) for name, view in views.items()}  # as they lie in memory
    places = {name: (x.storage_offset() * x.itemsize, x.nbytes, x.dtype, x.shape) for name, x in pages.items()}
    distinct = sorted(set(places.values()), key=lambda place: place[:2])
    overlapping = any(start + size > after for (start, size, *_), (after, *_) in pairwise(distinct))
    if overlapping or not all(x.is_contiguous() for x in pages.values()):
        return allocate_kv_cache(config, device, layout, kernel_block_sizes)
    # The key and the value of a head are rows of their own, as in the kernel's pages.
    memory = {
        place: torch.zeros(*place[3][:2], 2 * place[3][2], place[3][3] // 2, dtype=place[2], device=device)
        for place in distinct
    }
    return {name: memory[places[name]].view(x.shape).transpose(1, 2) for name, x in pages.items()}


def whole(rows: torch.Tensor) -> torch.Tensor:
    """Return the buffer whose first rows these are: vLLM keeps one for the most tokens, or requests, of a step."""
    return rows if rows._base is None else rows._base


def copy_rows(source: torch.Tensor, target: torch.Tensor, rows: int) -> torch.Tensor:
    """Copy a buffer of the host and return the first rows. One with a number for each request is copied as a whole,
    and later rows are those of the first request."""
    if source.dim() == 1:
        source[rows:] = source[0]
        return target.copy_(source)[:rows]
    return target[:rows].copy_(source[:rows])


def write(key: torch.Tensor, value: torch.Tensor, pages: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write keys and values, [tokens, heads, width], into their slots of [blocks, tokens of a block, 2 * heads, width].
    Padding goes to block 0, which vLLM gives to no request."""
    size, slots = pages.shape[1], whole(slot_mapping)[: len(key)].clamp(min=0)
    pages.index_put_((slots // size, slots % size), torch.stack([key, value], 2).flatten(1, 2))


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
        starts, positions = whole(starts).to(out.device), whole(positions)[: len(out)].to(out.device)
        order = torch.arange(len(out), device=out.device)
        request = torch.searchsorted(starts, order.to(starts.dtype), right=True).clamp(1, len(table)) - 1
        slots = table[request, (positions // block).clamp(0, table.shape[1] - 1)].long() * block + positions % block
        out.copy_(torch.where(order < starts[-1], slots, -1))


class Buffer(CpuGpuBuffer):
    """A buffer that is copied as a whole, so that programs have one size. After the rows of a step it is 0: a token, a
    block or a request that exists."""

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        if n is None:
            return super().copy_to_gpu()
        self.cpu[n:] = 0
        return super().copy_to_gpu()[:n]
