"""The smallest Llama."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama(**options: Any) -> LlamaForCausalLM:
    """Return a model, of one layer by default, with the same weights every time."""
    torch.manual_seed(0)
    smallest: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
    return LlamaForCausalLM(LlamaConfig(**(smallest | options)))
