"""Rehearsed steps in a process group: they list the programs that really run, and do not affect the training. Each
function runs on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lazytpu
from lazytpu import wiring
from lazytpu.distributed import world
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.rehearsal.rehearse import rehearse

Step = Callable[[], torch.Tensor]


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


def _training(kind: str) -> Step:
    """Return a training step with the state of each kind."""
    size, rank = dist.get_world_size(), dist.get_rank()
    x = torch.linspace(-1, 1, 64).reshape(8, 8).chunk(size)[rank].to("tpu")
    model = _model().to("tpu")
    call: Callable[[torch.Tensor], torch.Tensor] = model
    if kind in ("ddp", "bucket views"):
        call = DistributedDataParallel(model, gradient_as_bucket_view=kind == "bucket views")
    elif kind == "fsdp2":
        fully_shard(model[0])
        fully_shard(model)
    elif kind in ("tensor parallel", "checkpointed"):
        parallelize_module(model, init_device_mesh("tpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if kind == "checkpointed":

            def recomputed(x: torch.Tensor) -> Any:
                return checkpoint(model, x, use_reentrant=False)

            call = recomputed
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    running, static = torch.zeros((), device="tpu"), torch.zeros_like(x)

    def step() -> torch.Tensor:
        static.copy_(x)  # a copy of the whole tensor shares the value of x
        loss = call(static).square().mean()
        loss.backward()
        if kind == "all_reduce":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        running.add_(loss.detach())
        dist.all_reduce(running, dist.ReduceOp.AVG)
        return running.clone()

    return step


@contextmanager
def _launches() -> Iterator[list[Any]]:
    """Return the programs that are launched inside."""
    seen: list[Any] = []
    originals = {name: getattr(Compiled, name) for name in ("launch", "launch_watched")}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(self)
            return original(self, *args, **kwargs)

        return launch

    for name, original in originals.items():
        setattr(Compiled, name, noting(original))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(Compiled, name, original)


def _launched(step: Step) -> int:
    """Return half the number of programs that two more calls of a step launch."""
    lazytpu.sync()
    with _launches() as seen:
        results = [step(), step()]
        lazytpu.sync()
    del results
    return len(seen) // 2


def _check(kind: str) -> None:
    plain, rehearsed = _training(kind), _training(kind)
    for count in range(5):
        if count in (0, 1, 3):
            rehearse(rehearsed)
            assert not any(_flight().pending.values()), "collectives that nothing launches"
        expected, loss = plain().item(), rehearsed().item()
        assert loss == expected, f"{kind}, after {count} steps: {loss}, without a rehearsal {expected}"
    programs = rehearse(rehearsed)
    assert any(record.collective for program in programs for record in program.records)
    assert len(programs) == _launched(rehearsed), f"{kind}: {len(programs)} programs in the report"
    assert plain().isfinite()


def _flight() -> Any:
    assert world.WORLD is not None
    return world.WORLD.flight


def trainings_go_on() -> None:
    """The report lists the pieces that run until the whole program of a step is compiled."""
    with lazytpu.options(collectives="checked"):
        _go_on()


def _go_on() -> None:
    for kind in ("all_reduce", "ddp", "bucket views", "fsdp2", "tensor parallel", "checkpointed"):
        _check(kind)


def on_one_rank() -> None:
    """A rehearsal launches nothing, so the other ranks need not take part."""
    step = _training("ddp")
    step()
    if dist.get_rank() == 0:
        rehearse(step)
    assert step().isfinite()


def collectives_write() -> None:
    """They write to whole tensors, slices, and other dtypes; afterwards the previous contents are restored."""
    size = dist.get_world_size()
    full, sliced = torch.arange(4.0, device="tpu"), torch.arange(8.0, device="tpu")
    gathered = [torch.full((4,), 7.0, device="tpu") for _ in range(size)]
    pairs = torch.full((2,), 1 + 2j, device="tpu")
    sharded = distribute_tensor(torch.arange(8.0), init_device_mesh("tpu", (size,)), [Shard(0)])

    def step() -> None:
        dist.all_reduce(full)
        dist.all_reduce(sliced[::2])
        dist.all_gather(gathered, full)
        dist.broadcast(pairs, 0)
        full.add_(1)
        sharded.mul_(2)
        dist.all_reduce(full, async_op=True).wait()

    before = copy.deepcopy((full, sliced, gathered, pairs))
    rehearse(step)
    torch.testing.assert_close((full, sliced, gathered, pairs), before, rtol=0, atol=0)
    torch.testing.assert_close(sharded.full_tensor().cpu(), torch.arange(8.0), rtol=0, atol=0)
    assert wiring.ENGINE is not None
