"""Training by torch's own wrappers, compared with the losses and parameters of one process. Each function runs on both
ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import lazytpu
from lazytpu import wiring
from lazytpu.distributed import world

STEPS = 4


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def _data() -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def _train(model: torch.nn.Module, x: torch.Tensor, diverging: bool = False) -> list[float]:
    """Return the losses of some steps. With `diverging`, rank 0 reads and computes more than rank 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses: list[torch.Tensor] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        if diverging and dist.get_rank() == 0 and step % 2:
            assert loss.item() > 0
        loss.backward()
        if diverging and dist.get_rank() == 0:
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().tolist()


def _check(
    parallel: torch.nn.Module, losses: list[float], module: torch.nn.Module | None = None, *, mean: bool = True
) -> None:
    """Compare with one process. With `mean`, each rank has the losses of its part of the data."""
    alone = _model()
    expected = _train(alone, _data())
    if mean:
        mine = torch.tensor(losses)
        dist.all_reduce(mine)
        losses = (mine / 2).tolist()
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)
    for got, wanted in zip((module or parallel).parameters(), alone.parameters(), strict=True):
        full = got.full_tensor() if isinstance(got, DTensor) else got
        torch.testing.assert_close(full.detach().cpu(), wanted.detach(), rtol=2e-4, atol=2e-4)


def _part() -> torch.Tensor:
    return _data().chunk(2)[dist.get_rank()].to("tpu")


def _data_parallel(diverging: bool = False, **options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(_model().to("tpu"), **options)
    _check(model, _train(model, _part(), diverging), model.module)
    return model


def ddp() -> None:
    _check_steady(_data_parallel())
    group: Any = dist.group.WORLD
    assert world.WORLD is not None
    line = world.WORLD.flight.last[group.key][-1].line
    assert line.function == "_step", "the reducer is no code of the user: the line is that of backward()"


def _check_steady(model: torch.nn.Module) -> None:
    """After three steps, a step in pieces is one cut, and compiles nothing. It launches its collectives, and one
    program before, between and after them. (`together` compiles the whole in the background: see windows.py.)"""
    with lazytpu.options(collectives="checked"):
        _check_steady_pieces(model)


def _check_steady_pieces(model: torch.nn.Module) -> None:
    x, optimizer = _part(), torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(3):
        _step(model, x, optimizer)
    for job in wiring.start().background.unfinished():  # whole programs of earlier steps
        assert job.done.wait(60)
    warm, (launched, collectives) = lazytpu.metrics(), _counts()
    with pytest.MonkeyPatch.context() as patch:  # on a busy machine, waiting ranks would have it cut
        patch.setattr(world.World, "_cut", lambda *trace: None)
        for _ in range(2):
            _step(model, x, optimizer)
    after, counts = lazytpu.metrics(), _counts()
    assert counts[1] > collectives
    assert counts[0] - launched <= 2 * (counts[1] - collectives) + 2
    assert {name: after[name] - warm[name] for name in ("compiles", "misses", "steps")} == {
        "compiles": 0,
        "misses": 0,
        "steps": 2,
    }


def _counts() -> tuple[int, int]:
    """Return how many programs were launched, and how many of them are collectives of all processes."""
    engine, group = wiring.ENGINE, dist.distributed_c10d._get_default_group()
    assert engine is not None
    return engine.launched(), group._get_sequence_number_for_group()


def _step(model: torch.nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    lazytpu.mark_step()


def ddp_bucket_views() -> None:
    _data_parallel(gradient_as_bucket_view=True)


def ddp_static_graph() -> None:
    _data_parallel(static_graph=True)


def ddp_unused_parameters() -> None:
    """Each rank omits a different layer, and both omit a third one."""
    _data_parallel(find_unused_parameters=True)

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
            return self.layers[which](x)

    model = DistributedDataParallel(Branches().to("tpu"), find_unused_parameters=True)
    alone = [Branches(), Branches()]
    x = torch.ones(2, 4)
    for _ in range(2):
        model(x.to("tpu"), dist.get_rank()).sum().backward()
        for rank, branch in enumerate(alone):
            branch(x, rank).sum().backward()
    for got, *wanted in zip(model.module.parameters(), *(branch.parameters() for branch in alone), strict=True):
        grads = [parameter.grad for parameter in wanted if parameter.grad is not None]
        assert (got.grad is None) == (not grads)
        if got.grad is not None:
            torch.testing.assert_close(got.grad.cpu(), sum(grads[1:], grads[0]) / 2)


def ddp_small_buckets() -> None:
    _check_steady(_data_parallel(bucket_cap_mb=1e-4))


def ddp_diverging() -> None:
    _data_parallel(diverging=True)


def ddp_no_sync() -> None:
    """Two halves of the data; only the second is reduced."""
    model = DistributedDataParallel(_model().to("tpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        first, second = _part().chunk(2)
        with model.no_sync():
            loss = model(first).pow(2).mean() / 2
            loss.backward()
        two = model(second).pow(2).mean() / 2
        two.backward()
        optimizer.step()
        losses.append((loss + two).item())
    _check(model, losses, model.module)


def ddp_hook() -> None:
    """Communication hooks that reduce in float16, in bfloat16, and in 8 bits."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

    alone = _model()
    alone(_data()).pow(2).mean().backward()
    for hook, error in (
        (default_hooks.fp16_compress_hook, 2e-3),
        (default_hooks.bf16_compress_hook, 1e-2),
        (quantization_hooks.quantization_pertensor_hook, 2e-2),
    ):
        model = DistributedDataParallel(_model().to("tpu"))
        model.register_comm_hook(dist.group.WORLD, hook)
        model(_part()).pow(2).mean().backward()
        for got, wanted in zip(model.module.parameters(), alone.parameters(), strict=True):
            assert got.grad is not None and wanted.grad is not None
            torch.testing.assert_close(got.grad.cpu(), wanted.grad, rtol=2e-2, atol=error)


def _sharded(diverging: bool = False, **options: Any) -> torch.nn.Module:
    mesh = init_device_mesh("tpu", (2,))
    model = _model().to("tpu")
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, **options)
    _check(model, _train(model, _part(), diverging))
    return model


def fsdp2() -> None:
    _check_steady(_sharded())


def fsdp2_not_resharded() -> None:
    _sharded(reshard_after_forward=False)


def fsdp2_diverging() -> None:
    _sharded(diverging=True)


def fsdp2_mixed_precision() -> None:
    mesh = init_device_mesh("tpu", (2,))
    model = _model().to("tpu")
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    losses = _train(model, _part())
    assert losses[-1] < losses[0]


def tensor_parallel() -> None:
    """Tensor parallelism of a whole model, and of one layer of it, so that the optimizer has DTensors and tensors."""
    mesh = init_device_mesh("tpu", (2,))
    plans: list[Any] = [{"0": ColwiseParallel(), "2": RowwiseParallel()}]
    plans.append({"0": ColwiseParallel(output_layouts=Replicate())})
    for plan in plans:
        model = parallelize_module(_model().to("tpu"), mesh, plan)
        _check(model, _train(model, _data().to("tpu")), mean=False)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def dtensors() -> None:
    """Shards of even and uneven sizes, redistributed and multiplied."""
    mesh = init_device_mesh("tpu", (2,))
    for rows in (4, 5):
        full = torch.randn(rows, 6, generator=torch.Generator().manual_seed(3))
        sharded = distribute_tensor(full.to("tpu"), mesh, [Shard(0)])
        torch.testing.assert_close(_whole(sharded).cpu(), full)
        redistributed = sharded.redistribute(mesh, [Shard(1)])
        torch.testing.assert_close(_whole(redistributed).cpu(), full)
        product = sharded @ distribute_tensor(full.t().contiguous().to("tpu"), mesh, [Replicate()])
        torch.testing.assert_close(_whole(product).cpu(), full @ full.t())
        torch.testing.assert_close(_whole(sharded.sum()).cpu(), full.sum())


def functional_collectives() -> None:
    rank, group = dist.get_rank(), dist.distributed_c10d._get_default_group()
    mine = torch.arange(4.0, device="tpu") + rank
    results: dict[str, Callable[[], torch.Tensor]] = {
        "all_reduce": lambda: functional.all_reduce(mine, "sum", group),
        "all_gather": lambda: functional.all_gather_single(mine, 0, group),
        "reduce_scatter": lambda: functional.reduce_scatter_single(mine, "avg", 0, group),
        "all_to_all": lambda: functional.all_to_all_single(mine, None, None, group),
        "broadcast": lambda: functional.broadcast(mine, 1, group),
    }
    expected = {
        "all_reduce": [1.0, 3.0, 5.0, 7.0],
        "all_gather": [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0],
        "reduce_scatter": [[0.5, 1.5], [2.5, 3.5]][rank],
        "all_to_all": [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 4.0]][rank],
        "broadcast": [1.0, 2.0, 3.0, 4.0],
    }
    for name, call in results.items():
        assert call().tolist() == expected[name], name
