"""Cuts among the ranks of a mesh that run as one program with their collectives. Each function runs on all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import lazytpu
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.rehearsal.tpu_report import translated
from tests.distributed.cases.together import counts, together, trained


def _own_parts(device: str, steps: int) -> list[float]:
    """Return the losses of some steps with tensor parallelism, where each rank takes its part of the input."""
    torch.manual_seed(0)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layers = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.Linear(12, 8)).to(device)
    plan: Any = {"0": RowwiseParallel(input_layouts=Replicate()), "2": RowwiseParallel(input_layouts=Replicate())}
    model = parallelize_module(layers, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device)
    losses: list[torch.Tensor] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        lazytpu.mark_step()
    return torch.stack(losses).tolist()


def each_rank_takes_its_part() -> None:
    """The program of a step with tensor parallelism is the same on all ranks: it computes the rank."""
    expected = _own_parts("cpu", 10)
    torch.testing.assert_close(_own_parts("tpu", 10), expected)
    with together():
        before = counts()
        torch.testing.assert_close(_own_parts("tpu", 10), expected)
        windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert windows_run > split, f"{windows_run} windows, {split} split\n{lazytpu.explain()}"


def parts_follow_the_mesh() -> None:
    """A mesh may have its ranks in another order than their group: a rank's part is that of its place in the mesh."""
    size, rank = dist.get_world_size(), dist.get_rank()
    for ranks in ([*range(1, size), 0], [*reversed(range(size))], [*range(size)]):
        mesh = DeviceMesh("tpu", ranks)
        whole = torch.arange(6.0 * size).reshape(2 * size, 3)
        for dim, rows in ((0, whole), (-1, whole.t().contiguous())):
            replicated = DTensor.from_local(rows.to("tpu"), mesh, [Replicate()], run_check=False)
            own = replicated.redistribute(mesh, [Shard(dim)]).to_local()
            assert own.tolist() == rows.chunk(size, dim)[ranks.index(rank)].tolist()


def collectives_of_rows_and_columns() -> None:
    """Four ranks in a mesh of 2 x 2: all run the program of the cut, whose groups differ by rank."""
    rank = dist.get_rank()
    mesh = init_device_mesh("tpu", (2, 2))
    row, column = mesh.get_group(1), mesh.get_group(0)
    x = torch.full((3,), float(rank), device="tpu")
    with together(recurrences=0):
        before = counts()
        for _ in range(3):
            gathered = torch.empty(6, device="tpu")
            dist.all_gather_into_tensor(gathered, x * 2, group=row)
            y = gathered + 1
            dist.all_reduce(y, group=column)
            dist.broadcast(y, group_src=1, group=row)
            lazytpu.mark_step()
        windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert y.tolist() == [6.0] * 3 + [10.0] * 3
    assert windows_run == 3, f"{windows_run} windows, {split} split\n{lazytpu.explain()}"


def collectives_of_rows_and_of_all() -> None:
    """The groups of one program lie along axes of different meshes of the four ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows: list[Any] = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    row = rows[rank // 2]
    with together(recurrences=0):
        before = counts()
        for step in range(4):
            x = (torch.arange(4.0) + rank * rank + step).to("tpu")
            dist.all_reduce(x, group=row)
            dist.all_reduce(x)
            y = x * (rank + 1)
            dist.broadcast(y, 1)
            gathered = torch.empty(4 * size, device="tpu")
            dist.all_gather_into_tensor(gathered, y + rank)
            lazytpu.mark_step()
            total = 2 * sum(torch.arange(4.0) + each * each + step for each in range(size))
            assert x.tolist() == total.tolist()
            assert gathered.tolist() == torch.cat([2 * total + each for each in range(size)]).tolist()
        windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    assert windows_run > split, f"{windows_run} windows, {split} split\n{lazytpu.explain()}"


def hybrid_shards() -> None:
    """FSDP2 on a mesh of 2 x 2: parameters are gathered in rows, and gradients reduced in columns too."""
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    expected = trained("hsdp", 10, mesh=mesh)
    with together():
        before = counts()
        losses = trained("hsdp", 10, mesh=mesh)
        windows_run, split = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    assert windows_run > split, f"{windows_run} windows, {split} split\n{lazytpu.explain()}"
    with together(recurrences=1):
        torch.testing.assert_close(trained("hsdp", 9, reads=True, mesh=mesh), expected[:9], rtol=1e-4, atol=1e-6)


def rehearsals_list_the_program_of_all_ranks() -> str:
    """The report of a step of FSDP2 on a mesh of 2 x 2 is of the program that all four ranks launch. Returns the
    program."""
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to("tpu")
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 8, device="tpu")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step().item(), step().item()]
    with together():
        programs = [program for program in rehearse(step) if any(record.collective for record in program.records)]
        assert len(programs) == 1
        losses += [step().item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    return translated(programs[0], Target.parse("v5e:2x2")).stablehlo
