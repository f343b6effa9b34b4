"""Modules without sizes yet (nn.LazyLinear and similar): moved, converted, copied, saved, loaded and trained as on the
CPU, before and after the first forward."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")

STATISTICS = {"affine": True, "track_running_stats": True}
KINDS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda **k: nn.LazyLinear(3, **k), (4, 5)),
    "Conv1d": (lambda **k: nn.LazyConv1d(3, 2, **k), (2, 4, 6)),
    "Conv2d": (lambda **k: nn.LazyConv2d(3, 2, **k), (2, 4, 6, 6)),
    "Conv3d": (lambda **k: nn.LazyConv3d(3, 2, **k), (2, 4, 3, 3, 3)),
    "ConvTranspose1d": (lambda **k: nn.LazyConvTranspose1d(3, 2, **k), (2, 4, 6)),
    "ConvTranspose2d": (lambda **k: nn.LazyConvTranspose2d(3, 2, **k), (2, 4, 6, 6)),
    "ConvTranspose3d": (lambda **k: nn.LazyConvTranspose3d(3, 2, **k), (2, 4, 3, 3, 3)),
    "BatchNorm1d": (nn.LazyBatchNorm1d, (4, 5)),
    "BatchNorm2d": (nn.LazyBatchNorm2d, (4, 5, 3, 3)),
    "BatchNorm3d": (nn.LazyBatchNorm3d, (4, 5, 3, 3, 3)),
    "InstanceNorm1d": (lambda **k: nn.LazyInstanceNorm1d(**STATISTICS, **k), (4, 5, 7)),
    "InstanceNorm2d": (lambda **k: nn.LazyInstanceNorm2d(**STATISTICS, **k), (4, 5, 3, 3)),
    "InstanceNorm3d": (lambda **k: nn.LazyInstanceNorm3d(**STATISTICS, **k), (4, 5, 3, 3, 3)),
}


def _loaded(make: Any, device: str) -> nn.Module:
    saved, module = make(device=device), make(device=device)
    saved(_input(saved, device))
    _fill(saved)
    module.load_state_dict(saved.state_dict())
    return module


def _unpickled(make: Any, device: str) -> nn.Module:
    file = io.BytesIO()
    torch.save(make().to(device).state_dict(), file)
    file.seek(0)
    module = make(device=device)
    module.load_state_dict(torch.load(file, weights_only=False))
    return module.to(device)


MOVES: dict[str, Callable[[Any, str], nn.Module]] = {
    "made there": lambda make, device: make(device=device),
    "made there in float64": lambda make, device: make(device=device, dtype=torch.float64),
    "to": lambda make, device: make().to(device),
    "to twice, with dtypes": lambda make, device: make().to(device, torch.bfloat16).to(torch.float32),
    "double after": lambda make, device: make(device=device).double(),
    "double before": lambda make, device: make().double().to(device),
    "half and float": lambda make, device: make(device=device).half().float(),
    "there and back": lambda make, device: make(device=device).cpu().to(device),
    "deepcopy": lambda make, device: copy.deepcopy(make(device=device)),
    "inside another": lambda make, device: nn.Sequential(nn.Identity(), make()).to(device),
    "state": lambda make, device: _loaded(make, device),
    "state without sizes": lambda make, device: _unpickled(make, device),
}
LONG = pytest.mark.long
# torch itself rejects these: copies of buffers without sizes, states of instance norms
REFUSED = {("deepcopy", "BatchNorm"), ("deepcopy", "InstanceNorm"), ("state", "InstanceNorm")}
CASES = [
    pytest.param(kind, move, marks=() if kind in ("Linear", "BatchNorm2d") or move == "to" else LONG)
    for kind in KINDS
    for move in MOVES
    if (move, kind[:-2]) not in REFUSED
]


@pytest.mark.parametrize(("kind", "move"), CASES)
def test_lazy_module_is_as_on_the_cpu(kind: str, move: str) -> None:
    make, shape = KINDS[kind]
    expected, actual = (_trained(MOVES[move](make, device), shape, device) for device in ("cpu", "tpu"))
    assert actual["described"] == expected["described"]
    torch.testing.assert_close(actual["tensors"], expected["tensors"], rtol=1e-4, atol=1e-4)


def _trained(module: nn.Module, shape: tuple[int, ...], device: str) -> dict[str, Any]:
    """Return a module's description before and after its first forward, a step and a move."""
    described: list[Any] = [_description(module)]
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    dtype = next(module.parameters()).dtype
    x = torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape).div(7).sin()
    module(x.to(device))
    _fill(module)
    described.append(_description(module))
    out = module(x.to(device))
    out.sin().sum().backward()
    tensors = [out.detach().cpu().clone(), *(p.grad.cpu().clone() for p in module.parameters() if p.grad is not None)]
    optimizer.step()
    del out
    module.double()
    described.append(_description(module))
    tensors.append(module(x.to(device).double()).detach().cpu().clone())
    module.cpu()
    tensors += [*(p.detach() for p in module.parameters()), *module.buffers()]
    return {"described": described, "tensors": tensors}


def _description(module: nn.Module) -> list[Any]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [repr(module), *((name, type(tensor), tensor.dtype, tensor.requires_grad) for name, tensor in tensors)]


def _input(module: nn.Module, device: str) -> torch.Tensor:
    shape = next(shape for make, shape in KINDS.values() if type(make()) is type(module))
    return torch.ones(shape, device=device)


def _fill(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            numbers = torch.arange(parameter.numel(), dtype=parameter.dtype).reshape(parameter.shape)
            parameter.copy_(numbers.div(11).cos())


def test_lazy_module_that_is_never_called_disturbs_nothing() -> None:
    module = nn.LazyLinear(3, device="tpu")
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
    assert type(module.weight) is nn.UninitializedParameter
    assert module.weight.device.type == "tpu"


def test_lazy_module_raises_the_errors_of_torch() -> None:
    messages = []
    for device in ("cpu", "tpu"):
        weight: Any = nn.LazyLinear(3, device=device).weight
        for refused in (lambda w: w + 1, lambda w: w.shape, lambda w: w.clone(), lambda w: w.share_memory_()):
            with pytest.raises((ValueError, RuntimeError)) as raised:
                refused(weight)
            messages.append(str(raised.value))
    assert messages[:4] == messages[4:]
