"""Create the process groups that `torch.distributed` requests from the backend "tpu"."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from lazytpu.distributed import data_parallel, fsdp, imagined, meshes, own_parts, pipelines, splitting, tensor_lists
from lazytpu.distributed.common_store import answered
from lazytpu.distributed.control import SETTLING, CollectiveError
from lazytpu.distributed.group import DeviceGroup, TpuGroup
from lazytpu.distributed.starting import own_address
from lazytpu.distributed.world import world
from lazytpu.engine.engine import Engine
from lazytpu.frontend.device import forks
from lazytpu.frontend.libraries.places import call_when_imported, replace_when_imported
from lazytpu.frontend.torch_private import (
    DEVICE_MESH,
    DTENSOR,
    MESH_SCATTER,
    PIPELINE_GROUPS,
    REPLICATE_TO_SHARD,
    UNRECORDED,
    begin_sequence,
)
from lazytpu.interrupts import interruptible


def create(request: Any, start: Callable[[], Engine]) -> DeviceGroup:
    """Create a process group, as torch's extended backend API requests it.

    `asked` is torch's `DistributedBackendOptions`: store, ranks and timeout. `start` returns the engine. The first
    group of a process joins the job, and waits until all ranks have joined it.

    Raises RuntimeError when this process cannot join or is a fork of one that used the device, or a member does not
    arrive within the timeout, and NotImplementedError on platforms other than CPUs and TPUs.
    """
    if imagined.is_imagined():
        _adapt_torch()
        return imagined.create(request)
    if forks.FORKED:
        forks.refuse()
    members = list(request.global_ranks_in_group) or list(range(request.group_size))
    seconds = request.timeout.total_seconds()
    default = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    rank, size = default or (request.group_rank, request.group_size)
    job = world(request.store, rank, size, seconds, start)
    _adapt_torch()
    name = job.name_of(str(request.group_id), is_default=default is None)
    if default is None:
        job.patience = seconds
    # Check that all members are here before gloo connects: gloo ignores the timeout, waits for minutes, and does not
    # name the missing ranks. A group without a timeout gets half an hour from torch, so the default group's timeout
    # bounds how far ranks may be apart.
    job.seconds[name] = min(seconds, job.patience)
    job.meeting("start", name, members, "init_process_group" if default is None else "new_group").meet()
    job.seconds[name] = seconds
    host = _gloo(request, f"host/{job.token}/{name}", min(seconds, job.patience))
    group = TpuGroup(job, name, members, request.group_rank, host)
    group.store, group.make = request.store, partial(create, start=start)
    return group


@cache
def _adapt_torch() -> None:
    """Install the patches of torch modules, both the imported ones and those that will be imported later."""
    fsdp.install()
    data_parallel.install()
    splitting.install()
    call_when_imported(DTENSOR, tensor_lists.adapt)
    call_when_imported(DEVICE_MESH, meshes.adapt)
    replace_when_imported(REPLICATE_TO_SHARD, own_parts.of_the_group)
    replace_when_imported(MESH_SCATTER, own_parts.of_the_same)
    replace_when_imported(PIPELINE_GROUPS, pipelines.ordered)
    if UNRECORDED is not None:
        UNRECORDED.get().add("tpu")


@interruptible
def _connected(backend: Future[Any], seconds: float) -> Any:
    """Return the connected gloo backend. Raises CollectiveError after `seconds`, since gloo's store reads have no
    timeout."""
    try:
        return backend.result(seconds)
    except TimeoutError as error:
        raise CollectiveError(
            f"the store of this job has not given gloo the addresses of all ranks within {seconds:g} s, though they "
            "are all here: it does not answer, or has lost data"
        ) from error


@cache
def _device(address: str) -> Any:
    """Create the gloo device that listens on an address. All groups of a process share it, since the thread of each
    device wakes a hundred times a second."""
    gloo: Any = dist.ProcessGroupGloo
    return gloo.create_device(hostname=address)


def _gloo(request: Any, prefix: str, seconds: float) -> Any:
    """Create the gloo process group for CPU tensors, and wait at most `seconds` until it has connected.

    It listens only on the address by which the other machines of the job reach this one.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [_device(own_address(os.environ.get("MASTER_ADDR", "localhost")))]
    options._timeout = request.timeout
    # The prefix is unique to this job (its token) and to this group (its name). Otherwise gloo might read the addresses
    # of groups that were destroyed, or of processes before a restart.
    store = PrefixStore(prefix, request.store)
    group = dist.ProcessGroup(store, request.group_rank, request.group_size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    connected = Future[Any]()
    connect = partial(gloo, store, request.group_rank, request.group_size, options)
    threading.Thread(target=answered, args=(connected, connect), name="lazytpu gloo", daemon=True).start()
    backend = _connected(connected, seconds + SETTLING)
    begin_sequence(backend)
    group._register_backend(torch.device("cpu"), kind, backend)
    return group
