"""vLLM's model runner with the device's streams and events, and with steps of few sizes.

The sizes of a step on the device depend on its padded number of tokens alone, so that a program serves all steps of
that number, however many requests they have. vLLM computes positions and lengths on the host, and they are uploaded as
whole buffers; logits have a row for each request that the step may have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

import lazytpu
from lazytpu_vllm import cache, experts

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
        experts.install()
        super().__init__(vllm_config, device)
        self.cascade_attn_enabled = False
        self._offsets: dict[int, int] = {}  # row of a request with a seed -> its generator's offset before the step
        self.num_computed_tokens = torch.zeros_like(self.num_computed_tokens, device="cpu")
        self.positions = torch.zeros_like(self.positions, device="cpu")
        self._lengths = torch.zeros_like(self.seq_lens, device="cpu")
        self._on_device = self.query_start_loc.gpu, self.seq_lens
        for buffer in (self.req_indices, self.query_pos, self.num_scheduled_tokens, self.discard_request_mask):
            buffer.gpu = buffer.cpu

    def _init_device_properties(self) -> None:
        self.num_sms = 1

    def _sync_device(self) -> None:
        torch.tpu.synchronize()

    def _pad_for_sequence_parallelism(self, num_scheduled_tokens: int) -> int:
        """Return the tokens of a step, padding included: few sizes, whose programs a warm server has."""
        return min(max(TOKENS, 1 << (num_scheduled_tokens - 1).bit_length()), self.max_num_tokens)

    def _prepare_inputs(self, scheduler_output: Any, *args: Any) -> Any:
        starts = self.query_start_loc
        starts.gpu, self.seq_lens = starts.cpu, self._lengths  # while vLLM computes
        _, *others = super()._prepare_inputs(scheduler_output, *args)
        starts.gpu, self.seq_lens = (x.copy_(y) for x, y in zip(self._on_device, (starts.cpu, self._lengths)))
        tokens = self._pad_for_sequence_parallelism(scheduler_output.total_num_scheduled_tokens)
        return starts.gpu[1 : tokens + 1] - 1, *others  # at most a request for each token

    def _prepare_input_ids(self, scheduler_output: Any, num_reqs: int, tokens: int, ends: np.ndarray) -> None:
        """Take the tokens that the last step has sampled, which the host may not know yet, from the device."""
        sampled = self.input_batch.prev_sampled_token_ids
        rows = torch.full((self.max_num_tokens,), -1)  # of `sampled`, for each token
        if sampled is None:
            sampled = torch.zeros(self.max_num_reqs, 1, dtype=torch.int32, device=self.device)
        else:
            previous = self.prev_positions.np[:num_reqs]
            rows[ends[previous >= 0] - 1] = torch.from_numpy(previous[previous >= 0]).long()
        self.input_ids.copy_to_gpu(tokens)
        known, rows = self.input_ids.gpu[: len(rows)], rows.to(self.device)
        known.copy_(torch.where(rows >= 0, sampled[rows.clamp(min=0), 0], known))

    def _get_slot_mappings(self, *args: Any, **kwargs: Any) -> Any:
        """Leave the padding, which vLLM fills with -1, as `cache.Slots` has made it: the same."""
        return super()._get_slot_mappings(*args, **{**kwargs, "num_tokens_unpadded": kwargs["num_tokens_padded"]})

    def _build_attention_metadata(self, **kwargs: Any) -> Any:
        """Describe as many requests as may run at once; those after the last have no tokens."""
        if not self.is_pooling_model:
            kwargs["num_reqs"] = self.max_num_reqs
        return super()._build_attention_metadata(**kwargs)

    def _preprocess(self, *args: Any, **kwargs: Any) -> Any:
        ids, embeddings, positions, *others = super()._preprocess(*args, **kwargs)
        return ids, embeddings, positions.to(self.device), *others

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        """Sample for each row of the logits; the tokens have the rows of the most requests that run at once.

        Ways of sampling are programs of their own, so that they do not multiply those of the model.
        """
        assert logits is not None
        lazytpu.mark_step()
        batch, rows = self.input_batch, len(logits)
        self._offsets = {row: generator.get_offset() for row, generator in batch.generators.items()}
        settings = batch.sampling_metadata
        if _takes_more_rows(settings):
            tensors = {name: getattr(settings, name) for name in ("temperature", "top_p", "top_k")}
            wider = {name: cache.whole(x)[:rows] for name, x in tensors.items() if x is not None}
            batch.sampling_metadata = replace(settings, **wider)
        else:
            logits = logits[: batch.num_reqs]
        output = super()._sample(logits, spec_decode_metadata)
        batch.sampling_metadata = settings
        tokens = output.sampled_token_ids
        output.sampled_token_ids = torch.nn.functional.pad(tokens, (0, 0, 0, self.max_num_reqs - len(tokens)))
        return output

    def _bookkeeping_sync(self, scheduler_output: Any, sampler_output: Any, *args: Any) -> Any:
        """Take back the draws for prompts that are not at their end, so that a seed gives the same tokens in any
        batch. vLLM then subtracts CUDA's draw."""
        for row, offset in self._offsets.items():
            if self.discard_request_mask.np[row]:
                self.input_batch.generators[row].set_offset(offset + CUDA_DRAW)
        tokens = sampler_output.sampled_token_ids
        read = tokens if self.use_async_scheduling else tokens.cpu()
        sampler_output.sampled_token_ids = read[: self.input_batch.num_reqs]
        results = super()._bookkeeping_sync(scheduler_output, sampler_output, *args)
        sampler_output.sampled_token_ids = tokens
        if self.input_batch.prev_sampled_token_ids is not None:
            self.input_batch.prev_sampled_token_ids = tokens
        return results


def _takes_more_rows(settings: SamplingMetadata) -> bool:
    """Return whether logits may have more rows than there are requests: those settings that are tensors have more, too,
    or name their rows."""
    if not settings.no_penalties or settings.allowed_token_ids_mask is not None:
        return False
    return settings.thinking_budget_state_holder is None and all(
        isinstance(processor, (LogitBiasLogitsProcessor, MinTokensLogitsProcessor))
        or (isinstance(processor, MinPLogitsProcessor) and not processor.min_p_count)
        for processor in settings.logitsprocs.all
    )
