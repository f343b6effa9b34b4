"""Generation by transformers, unmodified: the tokens of the CPU, and few programs however many tokens there are."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from math import log2
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.engine.cutting import on_host

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import transformers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the library's own

WORDS, TOKENS = 97, 24
MOST = int(4 + 4 * log2(TOKENS))
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
SIZES |= {"vocab_size": WORDS, "pad_token_id": 0, "eos_token_id": None, "max_position_embeddings": 128}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WINDOW = {**GROUPED, "num_hidden_layers": 2, "head_dim": 8, "sliding_window": 16}
OWN_NAMES = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 128, "vocab_size": WORDS, "eos_token_id": None}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Gemma2": WINDOW,
    "Mistral": {**GROUPED, "sliding_window": 16},
    "GPT2": {**OWN_NAMES, "pad_token_id": 0},
}

Generate = Callable[[Any, str], torch.Tensor]


def prompt(device: str, batch: int = 1, length: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, WORDS, (batch, length), generator=generator).to(device)


def written(model: Any, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
    how.setdefault("attention_mask", torch.ones_like(tokens))
    return model.generate(tokens, do_sample=False, max_new_tokens=TOKENS, **how)


def padded(model: Any, device: str) -> torch.Tensor:
    tokens = prompt(device, 3, 9)
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    mask[2, :2] = 0
    return written(model, tokens.masked_fill(mask == 0, 0), attention_mask=mask)


def assisted(model: Any, device: str) -> torch.Tensor:
    """By a draft model that is often right."""
    draft = copy.deepcopy(model).cpu()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() > 1:
                parameter.add_(0.15 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return written(model, prompt(device), assistant_model=draft.to(device))


def looked_up(model: Any, device: str) -> torch.Tensor:
    tokens = prompt(device)
    return written(model, torch.cat((tokens, tokens[:, :3]), 1), prompt_lookup_num_tokens=4)


WAYS: dict[str, Generate] = {
    "a cache that grows": lambda model, device: written(model, prompt(device)),
    "a static cache": lambda model, device: written(model, prompt(device), cache_implementation="static"),
    "beams": lambda model, device: written(model, prompt(device, 2), num_beams=3),
    "a padded batch": padded,
    "a draft model": assisted,
    "prompt lookup": looked_up,
}


def model(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**MODELS[family])
    return sharp(transformers.AutoModelForCausalLM.from_config(config))


def sequence_model(seed: int) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 4,
    }
    sizes |= {"vocab_size": WORDS, "pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0}
    return sharp(transformers.AutoModelForSeq2SeqLM.from_config(transformers.T5Config(**sizes)))


def sharp(model: Any) -> Any:
    """No choice is decided by rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model.eval()


@pytest.fixture(autouse=True)
def bucketed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use buckets and host runs, as in a process of a user."""
    monkeypatch.setattr(on_host, "BESIDE", 32)
    lazytpu.sync()
    with lazytpu.options(buckets="auto"):
        yield
        lazytpu.sync()


def programs(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """Return the result of `run` and the number of programs it added."""
    before = len(lazytpu.explain())
    result = run().cpu()
    return result, len(lazytpu.explain()) - before


QUICK = ("Llama", "a cache that grows")
OTHERS = [(family, way) for family in MODELS for way in WAYS if (family, way) != QUICK]


@pytest.mark.parametrize(("family", "way"), [QUICK, *(pytest.param(*o, marks=pytest.mark.long) for o in OTHERS)])
def test_tokens_equal_the_cpu_with_few_programs(family: str, way: str) -> None:
    host = model(family)
    device = copy.deepcopy(host).to("tpu")
    tokens, compiled = programs(lambda: WAYS[way](device, "tpu"))
    assert torch.equal(tokens, WAYS[way](host, "cpu"))
    assert compiled <= MOST
    _, again = programs(lambda: WAYS[way](device, "tpu"))
    assert again <= 1


@pytest.mark.long
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_prompts_of_other_lengths_share_programs(how: dict[str, Any]) -> None:
    host = model("Llama")
    device = copy.deepcopy(host).to("tpu")
    compiled = list[int]()
    for length in (7, 12, 9, 17, 5, 23):
        tokens, new = programs(lambda length=length: written(device, prompt("tpu", 1, length), **how))
        assert torch.equal(tokens, written(host, prompt("cpu", 1, length), **how))
        compiled.append(new)
    assert sum(compiled[1:]) <= 8
    assert sum(compiled[2:]) <= 4


@pytest.mark.long
@pytest.mark.usefixtures("fresh_traces")
def test_draft_model_that_is_always_rejected() -> None:
    """With an encoder: each call of the draft model discards its whole cache."""
    host, wrong = sequence_model(0), sequence_model(1)
    device, draft = copy.deepcopy(host).to("tpu"), copy.deepcopy(wrong).to("tpu")
    compiled = list[int]()
    for length in (7, 12, 9):
        tokens, new = programs(lambda length=length: written(device, prompt("tpu", 1, length), assistant_model=draft))
        assert torch.equal(tokens, written(host, prompt("cpu", 1, length), assistant_model=wrong))
        compiled.append(new)
    assert max(compiled) <= MOST
    assert compiled[2] <= 6


@pytest.mark.long
def test_window_of_the_text_begins_at_any_offset() -> None:
    """Rejected tokens are removed from a sliding cache, at any offset."""
    host, how = model("Mistral"), {"prompt_lookup_num_tokens": 4}
    device = copy.deepcopy(host).to("tpu")
    compiled = list[int]()
    for length in (7, 12, 9):
        tokens, new = programs(lambda length=length: written(device, prompt("tpu", 1, length), **how))
        assert torch.equal(tokens, written(host, prompt("cpu", 1, length), **how))
        compiled.append(new)
    assert compiled[0] <= MOST
    assert sum(compiled[1:]) <= 10
