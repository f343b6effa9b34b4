"""Continuous batching of transformers: the same tokens as on the CPU, from few programs, with a cache that fits the
device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

import lazytpu
from lazytpu.engine.cutting import on_host
from lazytpu.frontend.device import memory_stats
from lazytpu.frontend.libraries.continuous_batching_hook import OF_HOST
from tests.frontend.libraries.llama import llama

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def as_in_a_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable host execution of traces that vary, which tests disable."""
    monkeypatch.setattr(on_host, "BESIDE", 32)
    with lazytpu.options(buckets="auto"):
        yield


def model() -> Any:
    return llama(num_hidden_layers=2, max_position_embeddings=128).eval()


def served(device: str, implementation: str = "sdpa", **settings: Any) -> list[list[int]]:
    """Return the tokens of requests of many lengths."""
    prompts = random.Random(0)
    requests = [[prompts.randrange(32) for _ in range(prompts.randint(2, 20))] for _ in range(6)]
    language = model()
    language.set_attn_implementation(implementation)
    answers = language.to(device).generate_batch(
        requests,
        generation_config=GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=5),
        continuous_batching_config=ContinuousBatchingConfig(
            **{"page_size": 8, "num_blocks": 24, "max_batch_tokens": 24, "max_requests_per_batch": 4, **settings}
        ),
    )
    assert [answer.error for answer in answers.values()] == [None] * len(requests)
    return [answer.generated_tokens for answer in answers.values()]


@pytest.mark.parametrize("implementation", [pytest.param("sdpa", marks=pytest.mark.long), "paged|eager"])
def test_tokens_equal_the_cpus(implementation: str) -> None:
    before = lazytpu.metrics()["compiles"]
    got = served("tpu", implementation)
    assert got == served("cpu", implementation)
    assert lazytpu.metrics()["compiles"] - before <= 4 + 4 * 6  # 4 + 4 * log2(tokens)


def cache_of(device: str) -> tuple[int, int]:
    """Return the bytes of a cache without a configured size, with its masks, and its number of blocks of 8 tokens."""
    server = (
        model()
        .to(device)
        .init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=5),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=8, max_batch_tokens=24, max_requests_per_batch=4
            ),
        )
    )
    server.warmup()
    ios = server.batch_processor.inputs_and_outputs
    sizes = [ios.attention_mask["full_attention"].nbytes, server.batch_processor.cache.cache_tensor.nbytes]
    blocks = server.batch_processor.cache.num_blocks
    lazytpu.sync()
    return sum(sizes), blocks


def test_the_cache_takes_the_devices_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a share where that is the host's memory."""
    free = 20_000_000
    monkeypatch.setattr(memory_stats, "mem_get_info", lambda device=None: (free, 4 * free))
    bytes_, blocks = cache_of("tpu")
    assert 0.3 * OF_HOST * free < bytes_ < OF_HOST * free
    assert blocks > 1000


def test_models_on_the_cpu_ask_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_stats, "mem_get_info", lambda device=None: pytest.fail("the device was asked"))
    assert len(served("cpu")) == 6
