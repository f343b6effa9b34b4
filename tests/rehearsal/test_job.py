"""Imagined jobs: one process is any rank of a job of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lazytpu
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.rehearsal.tpu_report import translated


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).to("tpu")


def ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(plain())


def sharded(*shape: int) -> nn.Module:
    model = plain()
    mesh = init_device_mesh("tpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp() -> nn.Module:
    return sharded(dist.get_world_size())


def hsdp() -> nn.Module:
    return sharded(4, dist.get_world_size() // 4)


def tensor_parallel() -> nn.Module:
    """The last layer shards its input, which all ranks hold: each takes its part."""
    model = plain()
    mesh = init_device_mesh("tpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "model"))
    up = ColwiseParallel(input_layouts=Replicate())
    down = RowwiseParallel(output_layouts=Replicate())
    for block in model:
        parallelize_module(block, mesh["model"], {"up": up, "down": down})
    head = nn.Linear(64, 64).to("tpu")
    model.append(parallelize_module(head, mesh["model"], RowwiseParallel(input_layouts=Replicate())))
    return model


def training(create: Callable[[], nn.Module]) -> Callable[[], torch.Tensor]:
    """Return a training step on a batch of this rank."""
    model = create()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 64).to("tpu")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def program(create: Callable[[], nn.Module], ranks: int, rank: int, target: str = "v5e:4x4") -> str:
    """Return the StableHLO of a step on a rank: one program."""
    with lazytpu.imagined_job(ranks, rank):
        (rehearsed,) = rehearse(training(create))
        return translated(rehearsed, Target.parse(target)).stablehlo


@pytest.mark.parametrize("create", [ddp, fsdp, hsdp, tensor_parallel])
def test_all_ranks_have_the_same_program(create: Callable[[], nn.Module]):
    first = program(create, 16, 0)
    assert "mhlo.num_replicas = 16" in first and "replica_group_mesh_axes" in first
    assert program(create, 16, 1) == first
    assert program(create, 16, 15) == first
    assert ("stablehlo.replica_id" in first) is (create is tensor_parallel)


def test_programs_do_not_grow_with_the_ranks():
    assert len(program(hsdp, 1024, 1023)) - len(program(hsdp, 16, 0)) < 1000


@pytest.fixture
def third() -> Iterator[None]:
    with lazytpu.imagined_job(ranks=4, rank=2):
        yield


def on(device: str, *values: float) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=torch.float32)


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.usefixtures("third")
def test_collectives_are_computed_as_if_all_ranks_held_the_same(device: str):
    x = on(device, 1, 2)
    dist.all_reduce(x)
    assert x.tolist() == [4, 8]
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [4, 8]
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.tolist() == [4, 8]
    slots = [torch.empty(2, device=device) for _ in range(4)]
    dist.all_gather(slots, x)
    assert [slot.tolist() for slot in slots] == [[4, 8]] * 4
    gathered = torch.empty(8, device=device)
    dist.all_gather_single(gathered, x)
    assert gathered.tolist() == [4, 8] * 4
    out = torch.empty(1, device=device)
    dist.reduce_scatter_single(out, on(device, 1, 2, 3, 4))
    assert out.tolist() == [12]
    out = torch.empty(4, device=device)
    dist.all_to_all_single(out, on(device, 1, 2, 3, 4))
    assert out.tolist() == [3, 3, 3, 3]
    dist.scatter(x, [on(device, i, i) for i in range(4)], src=2)
    assert x.tolist() == [2, 2]


@pytest.mark.usefixtures("third")
def test_objects_and_broadcasts():
    x = on("tpu", 1, 2)
    dist.broadcast(x, src=0)
    assert x.tolist() == [1, 2]
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"rank": 2})
    assert objects == [{"rank": 2}] * 4
    dist.barrier()


@pytest.mark.usefixtures("third")
def test_dtensors_have_the_part_of_their_rank():
    mesh = init_device_mesh("tpu", (4,))
    gathered = torch.arange(8.0).to("tpu")
    assert distribute_tensor(gathered, mesh, [Shard(0)]).to_local().tolist() == [4, 5]
    replicated = DTensor.from_local(gathered, mesh, [Replicate()])
    assert replicated.redistribute(mesh, [Shard(0)]).to_local().tolist() == [4, 5]
    assert replicated.redistribute(mesh, [Shard(0)]).full_tensor().tolist() == [4, 5] * 4


@pytest.mark.usefixtures("third")
def test_all_to_all_of_unequal_parts():
    out = torch.empty(8, device="tpu")
    dist.all_to_all_single(out, torch.arange(7.0, device="tpu"), [2, 2, 2, 2], [1, 3, 2, 1])
    assert out.tolist() == [4, 5] * 4
    with pytest.raises(ValueError, match="each rank sends the same, so it would receive parts of 2"):
        dist.all_to_all_single(out, torch.arange(7.0, device="tpu"), [1, 3, 2, 2], [1, 3, 2, 1])


def test_training_runs_and_is_restored_after_a_rehearsal():
    """DistributedDataParallel reads the order of its buckets after a broadcast, in the rehearsal."""
    with lazytpu.imagined_job(ranks=4):
        step, unrehearsed = training(ddp), training(ddp)
        rehearse(step)
        assert [step().item() for _ in range(3)] == [unrehearsed().item() for _ in range(3)]


def test_process_is_a_rank_inside_of_the_block_only():
    hook, before = sys.excepthook, dict(os.environ)
    with lazytpu.imagined_job(ranks=256, rank=3) as job:
        assert (job.ranks, job.rank) == (dist.get_world_size(), dist.get_rank()) == (256, 3)
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("3", "256")
        dist.init_process_group("tpu")  # as a script does
        dist.destroy_process_group()
        dist.init_process_group()
        assert dist.get_world_size() == 256
    assert not dist.is_initialized()
    assert sys.excepthook is hook and dict(os.environ) == before


def test_job_ends_with_an_error_in_its_block():
    with pytest.raises(KeyError), lazytpu.imagined_job(ranks=2):
        raise KeyError
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("ranks", "rank", "message"),
    [(4, 4, "rank 4 is not one of the 4 ranks"), (4, -1, "rank -1"), (0, 0, "at least 1, not 0")],
)
def test_rank_of_the_job(ranks: int, rank: int, message: str):
    with pytest.raises(ValueError, match=message):
        lazytpu.imagined_job(ranks, rank)


def test_jobs_do_not_nest():
    with lazytpu.imagined_job(ranks=2):
        with pytest.raises(RuntimeError, match="do not nest"), lazytpu.imagined_job(ranks=4):
            pass
        assert dist.get_world_size() == 2


def test_process_with_a_group_imagines_no_job():
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="this process is rank 0 of a job of 1 that exists"):
            lazytpu.imagined_job(ranks=2).__enter__()
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("third")
def test_data_of_other_ranks_does_not_exist():
    x = on("tpu", 1, 2)
    dist.send(x, 1)
    for name, call in {
        "recv": lambda: dist.recv(x, 1),
        "scatter": lambda: dist.scatter(x, src=1),
        "broadcast": lambda: dist.broadcast_object_list([None], src=1),
    }.items():
        with pytest.raises(RuntimeError, match=f"{name} takes the data of rank 1, which does not exist .* rank 2 of 4"):
            call()


@pytest.mark.usefixtures("third")
def test_script_that_expects_another_job_is_refused():
    with pytest.raises(ValueError, match="the imagined job has world_size 4, not 8"):
        dist.init_process_group("tpu", world_size=8, rank=2)
    with pytest.raises(ValueError, match="the backend of an imagined job is 'tpu', not 'gloo'"):
        dist.init_process_group("gloo")


@pytest.mark.usefixtures("third")
def test_groups_that_do_not_divide_the_job():
    group = dist.new_group([1, 2])
    x = on("tpu", 1, 2)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [2, 4]
    with pytest.raises(NotImplementedError, match=r"the ranks \[1, 2\] lie along no axes of a mesh"):
        rehearse(lambda: dist.all_reduce(x, group=group))


def test_tensors_outlive_the_job_but_groups_do_not():
    with lazytpu.imagined_job(ranks=2):
        step = training(fsdp)
        loss = step()
        group: Any = dist.group.WORLD
        x = on("tpu", 1, 2)
        dist.all_reduce(x)
    assert x.tolist() == [2, 4] and loss.item() > 0
    with pytest.raises(RuntimeError, match="belongs to an imagined job of 2 ranks, whose block has ended"):
        step()
    with pytest.raises(RuntimeError, match="whose block has ended"):
        group.allreduce([x])


@pytest.mark.long
def test_pod_is_compiled():
    """HSDP on 4,096 v5p, by libtpu."""
    with lazytpu.imagined_job(ranks=4096):
        report = lazytpu.tpu_report(training(hsdp), topology="v5p:16x16x16")
    (compiled,) = report.programs
    assert compiled.devices == 4096 and compiled.complete and compiled.exposed > 0
    assert {cost.collective for cost in compiled.collectives} <= {"all-gather", "reduce-scatter", "all-reduce"}


def test_slices_exchange_over_the_network():
    """Replicas in two slices: gradients are reduced inside of each slice, and then between them."""

    def in_slices() -> nn.Module:
        return sharded(2, 16)

    with lazytpu.imagined_job(ranks=32):
        (compiled,) = lazytpu.tpu_report(training(in_slices), topology="v5e:4x4*2").programs
    assert {cost.bound for cost in compiled.collectives} == {"links", "network"}
    assert "network" in {span.lane for span in compiled.schedule.spans}


def test_topology_has_the_jobs_chips():
    with lazytpu.imagined_job(ranks=16), pytest.raises(ValueError, match="is for 16 devices, and v6e:2x2 has 4"):
        lazytpu.tpu_report(training(ddp), topology="v6e:2x2")


@pytest.mark.parametrize(("ranks", "rank"), [("3", 0), (2.5, 0), (3, 1.0)])
def test_numbers_of_ranks_are_integers(ranks: Any, rank: Any) -> None:
    with pytest.raises(TypeError, match="both integers, not"):
        lazytpu.imagined_job(ranks=ranks, rank=rank)
