"""Steps of made-up requests, run before the first real one: their programs serve all later steps."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu_worker import Worker

from lazytpu_vllm.runner import TOKENS, TpuModelRunner

MADE = 3  # tokens of each request: that after the prompt, and two that follow from one before
RANDOM: tuple[dict[str, float], ...] = ({}, {"top_k": 10}, {"top_p": 0.9}, {"top_k": 10, "top_p": 0.9})
GREEDY = SamplingParams(temperature=0)
WAYS = [(SamplingParams(temperature=1, **settings),) for settings in RANDOM]
WAYS += [(GREEDY, *way) for way in WAYS]


def warm_up(worker: Worker, runner: TpuModelRunner) -> None:
    """Run prompts and next tokens of each padded size that a step may have, and each way of sampling for each number of
    rows that the logits have then."""
    longest = runner.max_model_len - MADE
    if longest <= 0:
        return
    tokens, rows = TOKENS, 0
    while tokens < 2 * runner.max_num_tokens:
        size = min(tokens, runner.max_num_tokens)
        count = min(-(-size // longest), runner.max_num_reqs)
        _serve(worker, runner, count, size // count, (GREEDY,))
        if rows != min(size, runner.max_num_reqs):
            rows = min(size, runner.max_num_reqs)
            for way in WAYS:
                count = min(max(count, len(way)), runner.max_num_reqs)
                _serve(worker, runner, count, size // count, way)
        tokens *= 2


def _serve(
    worker: Worker, runner: TpuModelRunner, count: int, length: int, samplings: tuple[SamplingParams, ...]
) -> None:
    """Run `count` requests with prompts of `length` tokens, as far as the cache and the model have room; they are
    sampled in turn by each of `samplings`."""
    groups = runner.kv_cache_config.kv_cache_groups
    length = max(1, min(length, runner.max_model_len - MADE))
    blocks = [-(-(length + MADE) // group.kv_cache_spec.block_size) for group in groups]
    count = min(count, (runner.kv_cache_config.num_blocks - 1) // max(1, *blocks))
    names = [f"warm-up {i}" for i in range(count)]
    step = _step(names, length, len(groups))
    step.scheduled_new_reqs = [
        NewRequestData(
            req_id=name,
            prompt_token_ids=[0] * length,
            mm_features=[],
            sampling_params=samplings[i % len(samplings)],
            pooling_params=None,
            block_ids=tuple([1 + i * size + at for at in range(size)] for size in blocks),
            num_computed_tokens=0,
            lora_request=None,
        )
        for i, name in enumerate(names)
    ]
    _run(worker, step)
    for made in range(MADE - 1):
        step = _step(names, 1, len(groups))
        step.scheduled_cached_reqs = known = CachedRequestData.make_empty()
        known.req_ids, known.new_block_ids = names, [None] * count
        known.num_computed_tokens, known.num_output_tokens = [length + made] * count, [1 + made] * count
        _run(worker, step)
    end = SchedulerOutput.make_empty()
    end.finished_req_ids = set(names)
    worker.execute_model(end)


def _step(names: list[str], tokens: int, groups: int) -> SchedulerOutput:
    """Return a step that computes that many tokens of each request."""
    step = SchedulerOutput.make_empty()
    step.num_scheduled_tokens = dict.fromkeys(names, tokens)
    step.total_num_scheduled_tokens = tokens * len(names)
    step.num_common_prefix_blocks = [0] * groups
    return step


def _run(worker: Worker, step: SchedulerOutput) -> None:
    output: Any = worker.execute_model(step)
    output = worker.sample_tokens(None) if output is None else output
    if hasattr(output, "get_output"):  # scheduled ahead: read the tokens as the engine does
        output.get_output()
