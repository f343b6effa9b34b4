"""Makes the process groups that `torch.distributed` asks the backend "tpu" for."""

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

from lazytpu.distributed import data_parallel, fsdp, pipelines, splitting, tensor_lists
from lazytpu.distributed.common_store import answered
from lazytpu.distributed.control import SETTLING, CollectiveError
from lazytpu.distributed.group import TpuGroup
from lazytpu.distributed.starting import own_address
from lazytpu.distributed.world import world
from lazytpu.engine.engine import Engine
from lazytpu.frontend.libraries.places import call_when_imported, replace_when_imported
from lazytpu.frontend.torch_private import DTENSOR, PIPELINE_GROUPS
from lazytpu.interrupts import interruptible


def create(asked: Any, start: Callable[[], Engine]) -> TpuGroup:
    """A group of processes. `asked` has the store, the ranks and the timeout, and `start` gives the engine; the first
    group joins the job, and waits for all of it.

    Raises RuntimeError when this process cannot join, or a member does not come within the timeout, and
    NotImplementedError on platforms other than CPUs and TPUs.
    """
    members = list(asked.global_ranks_in_group) or list(range(asked.group_size))
    seconds = asked.timeout.total_seconds()
    default = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None
    rank, size = default or (asked.group_rank, asked.group_size)
    job = world(asked.store, rank, size, seconds, start)
    _adapt_torch()
    name = job.name_of(str(asked.group_id), is_default=default is None)
    if default is None:
        job.patience = seconds
    # Gloo waits for members that do not come for minutes, whatever the timeout, and does not say who they are. Torch
    # gives half an hour to a group without a timeout: how far ranks may be apart is what the default group says.
    job.seconds[name] = min(seconds, job.patience)
    job.meeting("start", name, members, "init_process_group" if default is None else "new_group").meet()
    job.seconds[name] = seconds
    host = _gloo(asked, f"host/{job.token}/{name}", min(seconds, job.patience))
    made = TpuGroup(job, name, members, asked.group_rank, host)
    made.store, made.make = asked.store, partial(create, start=start)
    return made


@cache
def _adapt_torch() -> None:
    """Change what torch does for devices that it knows alone, in modules that are imported and those that will be."""
    fsdp.install()
    data_parallel.install()
    splitting.install()
    call_when_imported(DTENSOR, tensor_lists.adapt)
    replace_when_imported(PIPELINE_GROUPS, pipelines.ordered)


@interruptible
def _made(backend: Future[Any], seconds: float) -> Any:
    """The connected group, after at most so many seconds: gloo has no timeout for what it waits for in a store."""
    try:
        return backend.result(seconds)
    except TimeoutError as error:
        raise CollectiveError(
            f"the store of this job has not given gloo the addresses of all ranks within {seconds:g} s, though they "
            "are all here: it does not answer, or has lost what it was told"
        ) from error


def _gloo(asked: Any, prefix: str, seconds: float) -> Any:
    """The group of CPU tensors, which listens on the address by which the job is reached, and on no other. It has to be
    connected after so many seconds."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    address = own_address(os.environ.get("MASTER_ADDR", "localhost"))
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = asked.timeout
    # The store may still have the addresses of groups that were destroyed, and of processes before a restart: no other
    # job has this one's token, and no other group of it this name.
    store = PrefixStore(prefix, asked.store)
    group = dist.ProcessGroup(store, asked.group_rank, asked.group_size)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    made = Future[Any]()
    connect = partial(gloo, store, asked.group_rank, asked.group_size, options)
    threading.Thread(target=answered, args=(made, connect), name="lazytpu gloo", daemon=True).start()
    backend = _made(made, seconds + SETTLING)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), kind, backend)
    return group
