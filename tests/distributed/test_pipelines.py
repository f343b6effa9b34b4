"""Pipelines in one process: torch passes parameter groups to the zero-bubble schedules in a fixed order."""

from __future__ import annotations

import torch
from torch.distributed.pipelining import _backward

from lazytpu.distributed import pipelines


def test_weights_come_in_the_order_of_the_parameters() -> None:
    get_param_groups = pipelines.ordered(_backward.get_param_groups)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    x = torch.ones(2, 3, requires_grad=True)
    edges = _backward.construct_reverse_graph([model(x.clone()).grad_fn])
    params = [_backward._get_grad_fn_or_grad_acc(parameter) for parameter in model.parameters()]
    groups = get_param_groups([_backward._get_grad_fn_or_grad_acc(x)], params, edges)
    assert [group["params"] for group in groups] == [params[i : i + 2] for i in range(0, 8, 2)]
    assert all(isinstance(group["intermediates"], list) for group in groups)
