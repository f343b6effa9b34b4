"""Linear layers that autograd differentiates by one node: records, values and ops are those of torch's functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import lazytpu
from lazytpu.frontend.ops import linear
from lazytpu.frontend.tensors import recorder

# The sizes of an input, how it is viewed, and the output features.
INPUTS: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "matrix": ((3, 6), None, 4),
    "one row": ((1, 6), None, 4),
    "one element": ((1, 1), None, 4),
    "one column": ((3, 1), None, 1),
    "transposed matrix": ((6, 3), lambda x: x.t(), 4),
    "sequences": ((2, 3, 6), None, 4),
    "one token": ((1, 1, 6), None, 4),
    "transposed sequences": ((3, 2, 6), lambda x: x.transpose(0, 1), 4),
    "sliced sequences": ((2, 5, 6), lambda x: x[:, 1:4], 4),
    "images": ((2, 3, 2, 6), None, 4),
    "vector": ((6,), None, 4),
    "no rows": ((0, 6), None, 4),
    "no outputs": ((2, 3, 6), None, 0),
}
LOSSES: dict[str, Any] = {
    "sum": lambda y: y.sum(),
    "squares": lambda y: (y * y).sum(),
    "transposed": lambda y: (y.mT * torch.ones_like(y.mT).contiguous()).sum() if y.dim() > 1 else y.sum(),
}


def _leaves(name: str, biased: bool, device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape, view, out = INPUTS[name]
    width = (torch.empty(shape) if view is None else view(torch.empty(shape))).shape[-1]
    shapes = [shape, (out, width), *([(out,)] if biased else [])]
    return [torch.randn(s, dtype=dtype).to(device).requires_grad_() for s in shapes]


def _called(name: str, leaves: list[torch.Tensor], function: Any = functional.linear) -> torch.Tensor:
    view = INPUTS[name][1]
    return function(leaves[0] if view is None else view(leaves[0]), *leaves[1:])


def _trained(name: str, leaves: list[torch.Tensor], loss: Any, function: Any = functional.linear) -> None:
    loss(_called(name, leaves, function)).backward()


def _records(name: str, leaves: list[torch.Tensor], loss: Any, function: Any) -> list[Any]:
    lazytpu.mark_step()
    for leaf in leaves:
        leaf.grad = None
    with lazytpu.mode("lazy"):
        _trained(name, leaves, loss, function)
        path = recorder().state.path()
        found: list[Any] = [str(state.key) for state in path]
        found += [(str(r.op), r.in_graph, r.in_backward) for state in path for r in state.recorded]
        grads = [leaf.grad for leaf in leaves]
        lazytpu.mark_step()
    return found + [(g.shape, g.stride(), g.storage_offset()) for g in grads if g is not None]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", INPUTS)
def test_records_are_those_of_torch(name: str, loss: str, biased: bool) -> None:
    leaves = _leaves(name, biased, "tpu")
    for _ in range(2):
        by_us = _records(name, leaves, LOSSES[loss], functional.linear)
        assert by_us == _records(name, leaves, LOSSES[loss], linear._torch_linear)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 1), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("name", INPUTS)
def test_gradients_are_the_cpus(name: str, frozen: tuple[int, ...]) -> None:
    expected, actual = (_leaves(name, True, device) for device in ("cpu", "tpu"))
    for leaves in (expected, actual):
        for i in frozen:
            leaves[i].requires_grad_(False)
        for _ in range(2):
            _trained(name, leaves, LOSSES["squares"])
    for cpu, tpu in zip(expected, actual, strict=True):
        assert (cpu.grad is None) == (tpu.grad is None)
        if cpu.grad is not None and tpu.grad is not None:
            assert cpu.grad.stride() == tpu.grad.stride()
            torch.testing.assert_close(tpu.grad.cpu(), cpu.grad)


def test_one_node_differentiates_a_layer() -> None:
    x, weight, bias = _leaves("sequences", True, "tpu")
    node = functional.linear(x, weight).grad_fn
    assert node is not None and node.name() == "LinearBackward0"
    assert len(node.next_functions) == 3
    result = functional.linear(x, weight, bias)
    assert result._is_view() and result.grad_fn is not None and result.grad_fn.name() == "ViewBackward0"


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("of_forward", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["matrix", "sequences"])
def test_modes_see_the_ops_of_torch(name: str, biased: bool, of_forward: bool, differentiable: bool) -> None:
    seen: list[list[str]] = []
    for device in ("cpu", "tpu"):
        leaves, mode = _leaves(name, biased, device), _Seen()
        if of_forward:
            with mode:
                loss = LOSSES["squares"](_called(name, leaves))
        else:
            loss = LOSSES["squares"](_called(name, leaves))
        with mode:
            torch.autograd.grad(loss, leaves, create_graph=differentiable)
        seen.append(mode.ops)
    assert seen[0] == seen[1]


def test_flops_of_gradients_are_counted() -> None:
    x, weight = _leaves("sequences", False, "tpu")
    loss = functional.linear(x, weight).sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() == 2 * 2 * 2 * 3 * 6 * 4


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["matrix", "sequences", "sliced sequences", "one row"])
def test_second_derivatives(name: str, biased: bool) -> None:
    results: list[list[torch.Tensor]] = []
    for device in ("cpu", "tpu"):
        leaves = _leaves(name, biased, device, torch.float64)
        loss = LOSSES["squares"](_called(name, leaves).sin())
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
        results.append([t.detach().cpu() for t in (*first, *second)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_hooks_on_saved_tensors_see_those_of_torch() -> None:
    packed: list[list[tuple[int, ...]]] = []
    for device in ("cpu", "tpu"):
        shapes: list[tuple[int, ...]] = []

        def pack(t: torch.Tensor, shapes: list[tuple[int, ...]] = shapes) -> torch.Tensor:
            shapes.append(tuple(t.shape))
            return t

        leaves = _leaves("sequences", True, device)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            _called("sequences", leaves)
        packed.append(shapes)
    assert packed[0] == packed[1]


def test_checkpoint_whose_forward_a_mode_sees() -> None:
    gradients: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        leaves = _leaves("sequences", True, device)
        with _Seen():
            loss = checkpoint(functional.linear, *leaves, use_reentrant=False).square().sum()
        loss.backward()
        assert leaves[1].grad is not None
        gradients.append(leaves[1].grad.cpu())
    torch.testing.assert_close(*gradients)


def test_bias_of_one_element() -> None:
    gradients: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x, weight, _ = _leaves("matrix", True, device)
        bias = torch.ones(1, device=device, requires_grad=True)
        functional.linear(x, weight, bias).square().sum().backward()
        assert bias.grad is not None
        gradients.append(bias.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_result_written_in_place() -> None:
    gradients: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        leaves = _leaves("sequences", True, device)
        _called("sequences", leaves).mul_(2).add_(1).square().sum().backward()
        assert leaves[0].grad is not None
        gradients.append(leaves[0].grad.cpu())
    torch.testing.assert_close(*gradients)


def test_operand_overwritten_before_its_gradient_is_refused() -> None:
    x, weight = _leaves("matrix", False, "tpu")
    result = functional.linear(x, weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_lines_of_gradients_are_those_of_the_layer() -> None:
    x, weight = (torch.randn(shape).to("tpu").requires_grad_() for shape in ((2, 7, 9), (11, 9)))  # of no other test
    lazytpu.mark_step()
    with lazytpu.mode("lazy"):
        result = functional.linear(x, weight)
        result.sin().sum().backward()
        records = [r for state in recorder().state.path() for r in state.recorded if str(r.op) == "aten.mm.default"]
        lazytpu.mark_step()
    assert [r.in_graph for r in records] == [True, False, False]
    assert all("test_linear_gradients" in str(r.line) for r in records)
    assert ["(backward)" in str(r.line) for r in records] == [False, True, True]
