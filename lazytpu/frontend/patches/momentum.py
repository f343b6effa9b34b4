"""SGD's momentum starts at zero, like the averages of other optimizers.

torch.optim.SGD creates it in the first step, as a copy of the gradient. Recorded, that step would need a program of its
own, as large as the program for all others. From zero, the first step equals the others and has the same result: 0 *
momentum + gradient is the gradient (but -0.0 becomes 0.0). This does not apply with dampening, or where steps are
differentiated.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lazytpu.frontend.torch_private import SGD_GROUP


def install() -> None:
    """Wrap the method by which each step of torch.optim.SGD collects its parameters, after its closure has run."""
    collect = getattr(torch.optim.SGD, SGD_GROUP)

    @functools.wraps(collect)
    def collect_with_momentum(
        self: torch.optim.SGD, group: Any, params: Any, grads: Any, momentum_buffer_list: Any
    ) -> bool:
        first = len(momentum_buffer_list)
        sparse = collect(self, group, params, grads, momentum_buffer_list)
        if group["momentum"] != 0 and group["dampening"] == 0 and not torch.is_grad_enabled():
            for i in range(first, len(momentum_buffer_list)):
                grad = grads[i]
                if momentum_buffer_list[i] is None and grad.device.type == "tpu" and not grad.is_sparse:
                    momentum_buffer_list[i] = torch.zeros_like(grad)
        return sparse

    setattr(torch.optim.SGD, SGD_GROUP, collect_with_momentum)
