"""Arguments of a program are named after their tensors in the user's model."""

from __future__ import annotations

import torch

import lazytpu


def test_parameters_buffers_and_states_are_named_by_the_outermost_module() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.BatchNorm1d(2)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(torch.ones(4, 3, device="tpu")).square().sum().backward()
        optimizer.step()
        lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    for name in ("0.0.weight", "0.0.weight.momentum_buffer", "1.running_mean"):
        assert f'"{name}"' in text


def test_a_collected_module_leaves_no_name() -> None:
    weight = torch.ones(3, device="tpu")
    torch.nn.Module().register_buffer("scale", weight)
    lazytpu.mark_step()
    kept = weight + 1
    lazytpu.mark_step()
    assert '"scale"' not in lazytpu.graphs()[-1].text() and kept.shape == (3,)
