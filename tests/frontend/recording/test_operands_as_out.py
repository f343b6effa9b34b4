"""`out=` that is an operand, and other writes over operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "larger than self": lambda t, u: torch.maximum(t, u, out=t),
    "larger than other": lambda t, u: torch.add(u, t, out=t),
    "of another dtype": lambda t, u: torch.lt(t, u, out=t),
    "three operands": lambda t, u: torch.addcmul(u, u, t, out=t),
    "a condition": lambda t, u: torch.where(u > 1, t, u, out=t),
    "the same size": lambda t, u: torch.maximum(u, t[0], out=u),
    "a cross product": lambda t, u: torch.cross(u, u[:1], out=u),
    "another cross product": lambda t, u: torch.linalg.cross(t, u, out=u),
    "a number": lambda t, u: torch.mul(t, 2, out=t),
    "another tensor": lambda t, u: torch.maximum(t.clone(), u, out=t),
    "an index that is written": lambda t, u: (lambda i: i.index_put_((i,), i[0].clone()))(u.long()[0]),
    "values that are written": lambda t, u: u.index_put_((torch.zeros(2, dtype=torch.long, device=u.device),), u),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_as_on_the_cpu(name: str) -> None:
    def outcome(device: str) -> object:
        t, u = torch.ones(1, 3).to(device), torch.arange(6.0).view(2, 3).to(device)
        try:
            return CALLS[name](t, u).tolist(), t.tolist(), u.tolist()
        except RuntimeError as error:
            return str(error).split(" (")[0], t.tolist(), u.tolist()

    assert outcome("tpu") == outcome("cpu")
