"""One process per chip of a TPU: what libtpu has to know before it is loaded.

By itself libtpu takes all chips of the machine for one process, and a lock, on which the next process dies. Environment
variables give a process one chip, and say where the processes are that drive the others:

TPU_VISIBLE_CHIPS               the chip of this process, by its number on this machine
TPU_CHIPS_PER_PROCESS_BOUNDS    1,1,1; since these are not all of the machine's, there is no lock
TPU_PROCESS_BOUNDS              how the processes' chips lie along x, y and z
TPU_PROCESS_ADDRESSES           where each process listens, in the order of their numbers
TPU_PROCESS_PORT                where this one does
CLOUD_TPU_TASK_ID               the number of this process, which becomes that of its devices

No page of Google's describes all of them; they are used alike in

https://github.com/pytorch/xla/blob/master/torch_xla/_internal/tpu.py (`configure_topology`)
https://github.com/jax-ml/jax/blob/main/jax/_src/test_multiprocess.py (`_main`)
https://gist.github.com/skye/f82ba45d2445bb19d53545538754f9a3 (by an author of JAX, with processes that work alone)

and libtpu 0.0.42.1 names them; with them a second process does not meet the lock (tests/runtime/xla/test_chips.py).
Nothing here has run on a TPU yet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from math import prod

from lazytpu.launcher import local_rank, local_size
from lazytpu.runtime.errors import PlatformError
from lazytpu.runtime.xla import slices

# Of machines that are a slice by themselves, by their chips, where nothing says how these lie (JAX's tests; chips 0 and
# 1 of four are beside each other along y).
_MACHINES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "4,2,1"}
_SYNONYMS = {"TPU_VISIBLE_CHIPS": ("TPU_VISIBLE_DEVICES", "TPU_VISIBLE_DEVICE_PATHS")}
_ARRANGEMENT = ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES")


def variables(chip: int, number: int, addresses: Sequence[str], bounds: str) -> dict[str, str]:
    """The variables of the process with this number among those at `addresses`, which drives a chip of its machine."""
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": bounds,
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
        "TPU_PROCESS_PORT": addresses[number].rpartition(":")[2],
        "CLOUD_TPU_TASK_ID": str(number),
    }


def alone() -> None:
    """Prepare libtpu for a process that is in no group: with a launcher it takes the chip of its local rank, without
    one those of the machine. Variables that the user has set stay as they are.

    Raises PlatformError on one of several machines of a slice, where libtpu would wait for the others for ever.
    """
    if any(name in os.environ for name in _ARRANGEMENT):
        return
    if (local_size() or 1) > 1:
        _set(variables(local_rank() or 0, 0, [address("localhost")], "1,1,1"))
        return
    slice = slices.here()
    if slice.hosts > 1:
        raise PlatformError(
            f"this machine is one of {slice.hosts} of a TPU slice, whose chips start together: a process alone would "
            f"wait for the others for ever. On each machine, run torchrun --nnodes {slice.hosts} --node-rank (its "
            "TPU_WORKER_ID) --nproc-per-node (its chips) --master-addr (the first machine) SCRIPT, and call "
            "torch.distributed.init_process_group() in it. To use one chip of this machine by itself, set "
            "TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0"
        )


def together(rank: int, addresses: Sequence[str]) -> None:
    """Prepare libtpu for rank `rank` of a job with one process per chip, whose processes have these `addresses`, by
    rank. Without a launcher all are on this machine. Variables that the user has set stay as they are.

    Raises PlatformError when nothing says how so many chips lie, or the user gives this process several of them.
    """
    own = local_rank()
    bounds = os.environ.get("TPU_PROCESS_BOUNDS") or _bounds(len(addresses))
    _set(variables(rank if own is None else own, rank, addresses, bounds))
    visible = next(os.environ[name] for name in _names("TPU_VISIBLE_CHIPS") if name in os.environ)
    if len(visible.split(",")) > 1 and os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1":
        raise PlatformError(
            f"TPU_VISIBLE_CHIPS (or TPU_VISIBLE_DEVICES) is {visible} in rank {rank}, and a rank drives one chip: "
            "unset it, for the chip of LOCAL_RANK, or let it name another one in each rank"
        )


def address(host: str) -> str:
    """Where libtpu of this process is to listen: at `host`, on the port that the user has set, or one that is free."""
    port = os.environ.get("TPU_PROCESS_PORT")
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1" if host == "localhost" else host, 0))
            port = str(probe.getsockname()[1])
    return f"{host}:{port}"


def _bounds(size: int) -> str:
    slice = slices.here()
    if slice.chips is not None and prod(slice.chips) == size:
        return ",".join(map(str, slice.chips))
    if slice.hosts == 1 and size in _MACHINES:
        return _MACHINES[size]
    chips = "" if slice.chips is None else f" with {prod(slice.chips)} chips"
    raise PlatformError(
        f"the job has {size} ranks, one for each chip, and nothing says how {size} chips lie in this TPU slice of "
        f"{slice.hosts} machine{'s' if slice.hosts > 1 else ''}{chips}: start a rank for each chip of each machine "
        "(torchrun --nnodes --nproc-per-node), or set TPU_PROCESS_BOUNDS to their shape, such as 4,4,1 for 16 chips"
    )


def _names(variable: str) -> tuple[str, ...]:
    return variable, *_SYNONYMS.get(variable, ())


def _set(wanted: Mapping[str, str]) -> None:
    for variable, value in wanted.items():
        if not any(name in os.environ for name in _names(variable)):
            os.environ[variable] = value
