"""Records know the path of the module that recorded them, forward and backward."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lazytpu
from lazytpu.frontend import module_paths
from lazytpu.frontend.tensors import recorder


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attn(x))


class Net(nn.Module):
    """Each test has a width of its own: a state keeps the path of its first recording."""

    def __init__(self, width: int, call: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x * 2


def paths(op: str, run: Callable[[], object], backward: bool = False) -> list[str]:
    """Return the modules of the records of an op, in order."""
    lazytpu.sync()
    with lazytpu.mode("lazy"):
        results = run()
        records = [record for record in recorder().state.records() if record.in_backward == backward]
        named = [record.line.module for record in records if op in str(record.op) and record.line is not None]
        del results
        lazytpu.mark_step()
    return named


LINEARS = [f"blocks.{i}.{name}" for i in range(2) for name in ("attn", "mlp.0")]


def test_ops_of_modules_that_share_a_line_are_told_apart() -> None:
    net, x = Net(5).to("tpu"), torch.ones(2, 5).to("tpu")
    assert paths("addmm", lambda: net(x)) == LINEARS
    assert paths("aten.add.", lambda: net(x)) == ["blocks.0", "blocks.1"]
    assert paths("aten.mul.", lambda: net(x)) == ["Net"], "the outermost module has no path"
    assert paths("sin", lambda: x.sin()) == [""]


def test_gradients_belong_to_the_modules_of_their_forward_ops() -> None:
    net, x = Net(6).to("tpu"), torch.ones(2, 6).to("tpu")
    assert paths("threshold_backward", lambda: net(x).sum().backward(), backward=True) == [
        "blocks.1.mlp.1", "blocks.0.mlp.1",
    ]  # fmt: skip


def test_gradients_of_a_forward_pass_that_hits_have_its_modules() -> None:
    net, x = Net(13).to("tpu"), torch.ones(2, 13).to("tpu")
    assert paths("addmm", lambda: net(x)) == LINEARS  # a forward pass without a backward pass
    known = paths("aten.mm.", lambda: net(x).sum().backward(), backward=True)  # no record of it is new
    assert known == [path for path in reversed(LINEARS) for _ in range(2)][:-1]
    net.zero_grad()
    assert paths("threshold_backward", lambda: net(x).sum().backward(), backward=True) == [
        "blocks.1.mlp.1", "blocks.0.mlp.1",
    ]  # fmt: skip


def test_a_part_that_is_called_by_itself_keeps_its_path_in_the_model() -> None:
    net, x = Net(7).to("tpu"), torch.ones(3, 7).to("tpu")
    assert paths("relu", lambda: net.blocks[1](x)) == ["mlp.1"], "the model was never called"
    net(x)
    y = torch.ones(5, 7).to("tpu")
    assert paths("relu", lambda: net.blocks[1](y)) == ["blocks.1.mlp.1"], "a part that was called by itself before"


def test_recomputation_has_the_paths_of_the_forward_pass() -> None:
    net = Net(8, lambda block, x: checkpoint(block, x, use_reentrant=False)).to("tpu")
    x = torch.ones(7, 8).to("tpu")
    recomputed = paths("addmm", lambda: net(x).sum().backward(), backward=True)
    assert recomputed == ["blocks.1.attn", "blocks.1.mlp.0", "blocks.0.attn", "blocks.0.mlp.0"]
    with lazytpu.mode("lazy"):
        net(torch.ones(12, 8).to("tpu")).sum().backward()
        lines = {record.line for record in recorder().state.records() if "addmm" in str(record.op)}
        lazytpu.mark_step()
    text = linecache.getline(__file__, next(iter(lines)).line)
    assert "self.mlp(x + self.attn(x))" in text and len(lines) == 2, "the same line, forward and backward"


def test_a_module_that_was_replaced() -> None:
    net, x = Net(9).to("tpu"), torch.ones(8, 9).to("tpu")
    net(x)
    net.blocks[0].attn = nn.Linear(9, 9).to("tpu")
    assert paths("addmm", lambda: net(torch.ones(9, 9).to("tpu")))[0] == "blocks.0.attn"


def test_modules_are_not_kept_alive() -> None:
    import gc
    import weakref

    net = Net(10).to("tpu")
    net(torch.ones(10, 10).to("tpu"))
    alive = weakref.ref(net)
    lazytpu.sync()
    del net
    gc.collect()
    assert alive() is None


def test_xla_sees_them() -> None:
    net, x = Net(11).to("tpu"), torch.ones(2, 11).to("tpu")
    lazytpu.sync()
    net(x).sum().backward()
    lazytpu.mark_step()
    assert '"forward/blocks.1.attn"' in lazytpu.graphs()[-1].text()


def test_a_hit_finds_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.frontend import lines

    net, x = Net(13).to("tpu"), torch.ones(11, 13).to("tpu")
    for _ in range(2):
        net(x)
        lazytpu.mark_step()
    monkeypatch.setattr(lines, "module_path", lambda: pytest.fail("a record that is known has a path already"))
    net(x)


class Odd(Net):
    """Equal to every module, without a hash, and its parts cannot be listed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def named_modules(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Module]]:
        raise ValueError("nobody calls this")


def test_modules_are_told_apart_whatever_their_classes_define() -> None:
    net, x = Odd(21), torch.ones(2, 21).to("tpu")
    net._apply(lambda tensor: tensor.to("tpu"))
    assert paths("addmm", lambda: net(x)) == LINEARS
    assert paths("aten.mul.", lambda: net(x)) == ["Odd"]


def test_paths_end_with_their_modules() -> None:
    def known_after_a_call() -> bool:
        net, x = Net(22).to("tpu"), torch.ones(2, 22).to("tpu")
        paths("addmm", lambda: net(x))
        return {id(module) for module in net.modules()} <= module_paths._known.keys()

    assert known_after_a_call()
    gc.collect()
    assert all(known.module() is not None for known in module_paths._known.values())


def test_gradients_that_are_summed_up_need_no_saved_tensors() -> None:
    net, x = Net(14).to("tpu"), torch.ones(2, 14).to("tpu")
    for calls in (1, 2, 3):  # a forward pass that hits, and sums of its gradients that are new
        sum(net(x).square().mean() for _ in range(calls)).backward()  # type: ignore[union-attr]
        lazytpu.mark_step()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_hooks_of_saved_tensors_run_for_the_backward_pass_alone() -> None:
    weight, x = torch.ones(5, 15, requires_grad=True, device="tpu"), torch.ones(2, 5).to("tpu")
    unpacked: list[int] = []

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(1)
        return tensor

    def forward() -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            return (x @ weight).exp().sum()

    forward()
    lazytpu.mark_step()
    forward().backward()  # the forward pass hits, the backward pass is new
    new = len(unpacked)
    unpacked.clear()
    forward().backward()
    assert len(unpacked) == new
