"""transformers models look on the host at masks of their own making, and a step is one program all the same."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import lazytpu

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_a_training_step_is_one_program() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=32,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
            use_cache=False,  # else it does not look whether sequences are packed
        )
        model = LlamaForCausalLM(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        ids = torch.randint(0, 32, (2, 12)).to(device)
        found: list[torch.Tensor] = []
        for step in range(5):
            before = lazytpu.metrics()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
            lazytpu.mark_step()
            if device == "tpu" and step:
                ran = {name: lazytpu.metrics()[name] - before[name] for name in ("steps", "constant_reads", "compiles")}
                assert ran["steps"] == 1 and ran["constant_reads"] >= 1
                assert [cut.cause for cut in lazytpu.explain_cut(1)] == ["mark_step()"]
                assert step < 3 or not ran["compiles"]
        return [loss.item() for loss in found]

    torch.testing.assert_close(losses("tpu"), losses("cpu"), rtol=1e-3, atol=1e-4)
