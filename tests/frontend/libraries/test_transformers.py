"""transformers models read masks of their own on the host, and a step is one program all the same."""

from __future__ import annotations

import pytest
import torch

import lazytpu
from tests.frontend.libraries.llama import llama

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_a_training_step_is_one_program() -> None:
    def losses(device: str) -> list[float]:
        model = llama(use_cache=False).to(device)  # with a cache it does not check whether sequences are packed
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        ids = torch.randint(0, 32, (2, 12)).to(device)
        measured: list[torch.Tensor] = []
        for step in range(5):
            before = lazytpu.metrics()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            measured.append(loss.detach())
            lazytpu.mark_step()
            if device == "tpu" and step:
                ran = {name: lazytpu.metrics()[name] - before[name] for name in ("steps", "constant_reads", "compiles")}
                assert ran["steps"] == 1 and ran["constant_reads"] >= 1
                assert [cut.cause for cut in lazytpu.explain_cut(1)] == ["mark_step()"]
                assert step < 3 or not ran["compiles"]
        return [loss.item() for loss in measured]

    torch.testing.assert_close(losses("tpu"), losses("cpu"), rtol=1e-3, atol=1e-4)
