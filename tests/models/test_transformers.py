"""Models of Hugging Face's transformers, unmodified and tiny, on the device against the CPU."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import transformers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the library's own

WORDS = 31
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
DECODER = {**SIZES, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 32}
ENCODER = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TEXT_AND_LABELS = ("input_ids", "labels", "attention_mask")

MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Llama ForCausalLM": (DECODER, TEXT_AND_LABELS),
    "Mixtral ForCausalLM": ({**DECODER, "num_local_experts": 3, "num_experts_per_tok": 2}, TEXT_AND_LABELS),
    "Mamba ForCausalLM": (
        {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "time_step_rank": 4, "vocab_size": WORDS},
        ("input_ids", "labels"),
    ),
    "T5 ForConditionalGeneration": (
        {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
        | {"vocab_size": WORDS, "decoder_start_token_id": 0, "pad_token_id": 0},
        ("input_ids", "labels"),
    ),
    "ViT ForImageClassification": ({**SIZES, **ENCODER, "image_size": 8, "patch_size": 4}, ("pixel_values", "classes")),
    "Wav2Vec2 ForCTC": (
        {**SIZES, "conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (8,), "num_feat_extract_layers": 1}
        | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "vocab_size": WORDS, "pad_token_id": 0}
        | {"hidden_dropout": 0.0, "attention_dropout": 0.0, "feat_proj_dropout": 0.0, "activation_dropout": 0.0}
        | {"layerdrop": 0.0, "final_dropout": 0.0, "mask_time_prob": 0.0, "ctc_loss_reduction": "mean"},
        ("input_values", "labels"),
    ),
}


def model(name: str) -> Any:
    """The model with random parameters, the same for each call."""
    family, head = name.split()
    torch.manual_seed(0)
    return getattr(transformers, family + head)(getattr(transformers, f"{family}Config")(**MODELS[name][0]))


def batch(names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, WORDS, (2, 6), generator=generator)
    inputs = {
        "input_ids": ids,
        "labels": ids,
        "attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]),
        "classes": torch.tensor([0, 1]),
        "pixel_values": torch.randn(2, 3, 8, 8, generator=generator),
        "input_values": torch.randn(2, 80, generator=generator),
    }
    return {"labels" if name == "classes" else name: inputs[name] for name in names}


def trained(module: Any, inputs: dict[str, torch.Tensor], steps: int = 2) -> tuple[list[Any], ...]:
    """Losses, the gradients of the first step, and the parameters after the last."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3)
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = module(**inputs).loss
        loss.backward()
        losses.append(loss.detach())
        gradients = gradients or [p.grad.clone() for p in module.parameters() if p.grad is not None]
        optimizer.step()
    return losses, gradients, [p.detach() for p in module.parameters()]


IN_GATE = ("Llama ForCausalLM", "Mixtral ForCausalLM", "Mamba ForCausalLM")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in IN_GATE else pytest.mark.long) for n in MODELS])
def test_training_agrees_with_the_cpu(name: str) -> None:
    reference, inputs = model(name), batch(MODELS[name][1])
    device_model = copy.deepcopy(reference).to("tpu")
    expected = trained(reference, inputs)
    got = trained(device_model, {key: t.to("tpu") for key, t in inputs.items()})
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close([t.cpu() for t in g], e, rtol=2e-3, atol=1e-4)


def test_generated_tokens_agree_with_the_cpu() -> None:
    reference = model("Llama ForCausalLM").eval()
    device_model = copy.deepcopy(reference).to("tpu")
    prompt = {
        "input_ids": batch(("input_ids",))["input_ids"],
        "attention_mask": torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]]),
    }
    settings = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = reference.generate(**prompt, **settings)
    got = device_model.generate(**{key: t.to("tpu") for key, t in prompt.items()}, **settings)
    assert got.tolist() == expected.tolist()


def test_sampled_tokens_follow_the_seed() -> None:
    device_model = model("Llama ForCausalLM").eval().to("tpu")
    ids = batch(("input_ids",))["input_ids"].to("tpu")
    tokens = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        settings = {"max_new_tokens": 3, "do_sample": True, "top_k": 20, "top_p": 0.95, "pad_token_id": 0}
        tokens.append(device_model.generate(ids, eos_token_id=None, **settings).tolist())
    assert tokens[0] == tokens[1] != tokens[2]
