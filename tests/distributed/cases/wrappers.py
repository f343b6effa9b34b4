"""More of torch's wrappers for parallel training. Each function runs on both ranks."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import tempfile
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.distributed.cases.training import _check, _data, _model, _part, _train


def fsdp1() -> None:
    """A module on the CPU, which moves to the device."""
    model = FullyShardedDataParallel(_model(), device_id=torch.device("tpu"))
    losses = _train(model, _part())
    with FullyShardedDataParallel.summon_full_params(model):
        _check(model, losses)


def fsdp1_state_dicts() -> None:
    """State dicts of all parameters on the CPU, and on rank 0 alone, as scripts save them; training continues, with
    tied parameters, too."""
    full_on_rank_0 = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    is_first = dist.get_rank() == 0
    for use_orig_params in (False, True):
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
        inner[1].weight = inner[0].weight
        wanted = {name: value.clone() for name, value in inner.state_dict().items()}
        model = FullyShardedDataParallel(inner, device_id=torch.device("tpu"), use_orig_params=use_orig_params)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(2):
            with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, full_on_rank_0):
                torch.testing.assert_close(dict(model.state_dict()), wanted if is_first else {})
            optimizer.zero_grad()
            model(torch.ones(2, 5, device="tpu")).sum().backward()
            optimizer.step()
            with FullyShardedDataParallel.summon_full_params(model):
                wanted = {name: value.cpu() for name, value in inner.state_dict().items()}
        with FullyShardedDataParallel.summon_full_params(model, offload_to_cpu=True):
            assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        assert {parameter.device.type for parameter in model.parameters()} == {"tpu"}
    with pytest.raises(NotImplementedError, match="CPUOffloadPolicy"):
        FullyShardedDataParallel(
            torch.nn.Linear(2, 2), device_id=torch.device("tpu"), cpu_offload=CPUOffload(offload_params=True)
        )


def fsdp1_by_local_rank() -> None:
    """The device of a rank by its index, as in scripts for CUDA, for modules on the device and on the CPU."""
    device = torch.device("tpu", int(os.environ["LOCAL_RANK"]))
    wrapped = FullyShardedDataParallel(torch.nn.Linear(2, 2).to(device), device_id=device.index)
    moved = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=device)
    for model in (wrapped, moved):
        assert model(torch.ones(1, 2, device=device)).shape == (1, 2)
        assert next(model.parameters()).device.type == "tpu"


def fsdp2_offloaded() -> None:
    """Parameters, gradients and the optimizer on the CPU, pinned or not; their collectives go through gloo."""
    expected = _train(_model(), _data())
    for pinned in (True, False):
        model = _model()
        fully_shard(model, mesh=init_device_mesh("tpu", (2,)), offload_policy=CPUOffloadPolicy(pin_memory=pinned))
        mine = torch.tensor(_train(model, _part()))
        dist.all_reduce(mine)
        torch.testing.assert_close((mine / 2).tolist(), expected, rtol=1e-4, atol=1e-4)
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def fsdp2_made_on_meta() -> None:
    """Parameters without memory until they are sharded."""
    with torch.device("meta"):
        model = _model()
    fully_shard(model)
    model.to_empty(device="tpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, _model().state_dict() if dist.get_rank() == 0 else {}, options=options)
    _check(model, _train(model, _part()))


def synchronized_batch_norm() -> None:
    """Statistics over all ranks, which have parts of unequal sizes, compared with one process; also for half
    precision."""
    rank, sizes = dist.get_rank(), [5, 3]
    data = torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(2)) * 3 + 1
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        alone = torch.nn.BatchNorm1d(4)
        mine = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)).to("tpu")
        full = data.clone().requires_grad_()
        shard = data.split(sizes)[rank].to("tpu", dtype).requires_grad_()
        for _ in range(2):
            wanted, got = alone(full), mine(shard)
            wanted.pow(3).sum().backward()
            got.pow(3).sum().backward()
        assert full.grad is not None and shard.grad is not None and got.dtype == dtype
        close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=20 * tolerance, check_dtype=False)
        close(got.cpu(), wanted.split(sizes)[rank])
        close(shard.grad.cpu(), full.grad.split(sizes)[rank])
        for got_state, wanted_state in zip(mine.buffers(), alone.buffers(), strict=True):
            close(got_state.cpu(), wanted_state)
        for parameter, wanted_parameter in zip(mine.parameters(), alone.parameters(), strict=True):
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            close(parameter.grad.cpu(), wanted_parameter.grad)


def sharded_optimizer() -> None:
    model = DistributedDataParallel(_model().to("tpu"))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.05)
    losses: list[float] = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(_part()).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    _check(model, losses, model.module)


def compiled() -> None:
    """`torch.compile` of a model inside DDP."""
    model = _model().to("tpu")
    parallel = DistributedDataParallel(torch.compile(model))
    _check(parallel, _train(parallel, _part()), model)


def compiled_and_sharded() -> None:
    model = _model().to("tpu")
    fully_shard(model, mesh=init_device_mesh("tpu", (2,)))
    _check(model, _train(cast(Any, torch.compile(model)), _part()))


def pipelines() -> None:
    """Two stages, four microbatches: the gradients equal the gradients of the whole batch."""
    rank, reference = dist.get_rank(), _model()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        layers = copy.deepcopy(reference)
        stage_module = (layers[2:] if rank else layers[:2]).to("tpu")
        stage = PipelineStage(stage_module, rank, 2, torch.device("tpu"))
        run: Any = schedule(stage, n_microbatches=4, loss_fn=lambda y, target: (y - target).pow(2).mean())
        if rank == 0:
            run.step(_data().to("tpu"))
        else:
            run.step(target=torch.zeros(8, 8, device="tpu"))
        alone = copy.deepcopy(reference)
        alone(_data()).pow(2).mean().backward()
        for got, wanted in zip(stage_module.parameters(), (alone[2:] if rank else alone[:2]).parameters(), strict=True):
            assert got.grad is not None and wanted.grad is not None
            torch.testing.assert_close(got.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def interleaved_pipeline() -> None:
    """Two stages on each rank, which run alternately."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    reference = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
    layers = [copy.deepcopy(reference[i]).to("tpu") for i in (rank, rank + 2)]
    stages = [
        PipelineStage(layer, i, 4, torch.device("tpu")) for layer, i in zip(layers, (rank, rank + 2), strict=True)
    ]
    run = ScheduleInterleaved1F1B(list(stages), n_microbatches=4, loss_fn=lambda y, target: (y - target).pow(2).mean())
    if rank == 0:
        run.step(_data().to("tpu"))
    else:
        run.step(target=torch.zeros(8, 8, device="tpu"))
    reference(_data()).pow(2).mean().backward()
    for layer, i in zip(layers, (rank, rank + 2), strict=True):
        grad, expected = layer.weight.grad, reference[i].weight.grad
        assert isinstance(grad, torch.Tensor)
        torch.testing.assert_close(grad.cpu(), expected, rtol=1e-4, atol=1e-5)


def checkpoints_of_shards() -> None:
    """Checkpoints are saved, also asynchronously, and loaded into another model and optimizer."""
    where: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where)

    def made() -> tuple[Any, torch.optim.Optimizer]:
        model = _model().to("tpu")
        fully_shard(model, mesh=init_device_mesh("tpu", (2,)))
        return model, torch.optim.AdamW(model.parameters(), lr=0.05)

    model, optimizer = made()
    model(_part()).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    save(states, checkpoint_id=f"{where[0]}/one")
    async_save(states, checkpoint_id=f"{where[0]}/two").result()  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("one", "two"):
        restored, another = made()
        loaded: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(restored, another), strict=True))
        load(loaded, checkpoint_id=f"{where[0]}/{name}")
        set_state_dict(restored, another, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        for got, wanted in zip(restored.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(got.full_tensor().cpu(), wanted.full_tensor().cpu())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0])


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(x)).relu())


def sequence_parallel() -> None:
    alone, model = _Block(), _Block().to("tpu")
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, init_device_mesh("tpu", (2,)), plan)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(2))
    y = model(x.chunk(2, 1)[dist.get_rank()].to("tpu"))
    y.pow(2).mean().backward()
    expected = alone(x)
    expected.pow(2).mean().backward()
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-4)
    grad = model.up.weight.grad
    assert isinstance(grad, DTensor)
    torch.testing.assert_close(grad.full_tensor().cpu(), alone.up.weight.grad, rtol=1e-4, atol=1e-4)


def checkpoints_of_dtensors() -> None:
    """Activation checkpointing of functions of DTensors, both kinds and with a policy, compiled, and with FSDP2."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    rows = torch.arange(16.0).reshape(4, 4) / 8
    plain = rows.clone().requires_grad_()
    (plain * 2).sin().cos().sum().backward()
    assert plain.grad is not None

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    def selective() -> Any:
        policy = {torch.ops.aten.sin.default}
        return create_selective_checkpoint_contexts(
            lambda context, op, *args, **kwargs: (
                CheckpointPolicy.MUST_SAVE if op in policy else CheckpointPolicy.PREFER_RECOMPUTE
            )
        )

    kinds: list[dict[str, Any]] = [
        {"use_reentrant": True},
        {"use_reentrant": False},
        {"use_reentrant": False, "context_fn": selective},
    ]
    for options in kinds:
        for compiled in (False, True):
            if compiled and options["use_reentrant"]:
                continue
            x = distribute_tensor(rows, mesh, [Shard(0)]).requires_grad_()

            def whole(x: torch.Tensor, options: dict[str, Any] = options) -> torch.Tensor:
                return checkpoint(function, x * 2, **options)

            (torch.compile(whole) if compiled else whole)(x).sum().backward()
            torch.testing.assert_close(cast("DTensor", x.grad).full_tensor().cpu(), plain.grad)
    torch._dynamo.reset()


def checkpointed_blocks() -> None:
    """Blocks that are sharded by FSDP2, with tensor parallelism inside, and recomputed in the backward pass."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    for reentrant in (False, True):
        torch.manual_seed(0)
        wanted = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        parallel, sharded = copy.deepcopy(wanted).to("tpu"), copy.deepcopy(wanted).to("tpu")
        parallelize_module(parallel, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(sharded)
        x = torch.linspace(-1, 1, 8).reshape(2, 4)
        wanted(x).square().sum().backward()
        for model in (parallel, sharded):
            start = x.to("tpu").requires_grad_()
            checkpoint(model, start * 1, use_reentrant=reentrant).square().sum().backward()
            for actual, expected in zip(model.parameters(), wanted.parameters(), strict=True):
                torch.testing.assert_close(cast("DTensor", actual.grad).full_tensor().cpu(), expected.grad)
