"""vLLM's model runner with the device's streams and events."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from lazytpu_vllm import cache

TOKENS = 16  # the least tokens of a step, padding included
CUDA_DRAW = 4  # by how much a draw of CUDA advances a generator's offset, as vLLM assumes on every device


def use_streams() -> None:
    """Give CUDA's names of streams and events, which vLLM calls on every accelerator, the device's ones."""
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = torch.tpu.Stream, event
    cuda.current_stream, cuda.default_stream = torch.tpu.current_stream, torch.tpu.default_stream
    cuda.stream, cuda.set_stream = torch.tpu.stream, torch.tpu.set_stream


def event(*args: Any, blocking: bool = False, **kwargs: Any) -> torch.tpu.Event:
    """Return an event of the device; every wait for one blocks."""
    return torch.tpu.Event(*args, **kwargs)


class TpuModelRunner(GPUModelRunner):
    def __init__(self, vllm_config: VllmConfig, device: torch.device):
        use_streams()
        cache.install()
        super().__init__(vllm_config, device)
        self.cascade_attn_enabled = False
        self._offsets: dict[int, int] = {}  # row of a request with a seed -> its generator's offset before the step

    def _init_device_properties(self) -> None:
        self.num_sms = 1

    def _sync_device(self) -> None:
        torch.tpu.synchronize()

    def _pad_for_sequence_parallelism(self, num_scheduled_tokens: int) -> int:
        """Return the tokens of a step, padding included: few sizes, whose programs a warm server has."""
        return min(max(TOKENS, 1 << (num_scheduled_tokens - 1).bit_length()), self.max_num_tokens)

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        self._offsets = {row: generator.get_offset() for row, generator in generators.items()}
        return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Take back the draws for prompts that are not at their end, so that a seed gives the same tokens in any
        batch. vLLM then subtracts CUDA's draw."""
        for row, offset in self._offsets.items():
            if self.discard_request_mask.np[row]:
                self.input_batch.generators[row].set_offset(offset + CUDA_DRAW)
        return super()._bookkeeping_sync(*args, **kwargs)
