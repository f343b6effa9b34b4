"""Ops of a captured graph know the path of their module."""

from __future__ import annotations

import torch

import lazytpu
from tests.frontend.test_module_paths import Net


def test_a_compiled_model_has_the_paths_of_the_model() -> None:
    net, x = Net(14).to("tpu"), torch.ones(2, 14).to("tpu")
    compiled = torch.compile(net)
    lazytpu.sync()
    loss = compiled(x).sum()
    loss.backward()
    lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    for name in ("forward/blocks.0.attn", "forward/blocks.1.mlp.1", "forward/Net", "backward/blocks.1.attn"):
        assert f'loc("{name}"(' in text, name
