"""One process per chip of a TPU: the environment variables that libtpu reads when it is loaded.

By default, libtpu takes all chips of the machine for one process, and a lock that makes the next process fail.
Environment variables give a process one chip, and name the processes that drive the others:

TPU_VISIBLE_CHIPS               the chip of this process, by its number on this machine TPU_CHIPS_PER_PROCESS_BOUNDS
1,1,1; since these are not all chips of the machine, libtpu takes no lock TPU_PROCESS_BOUNDS              the
arrangement of the processes' chips along x, y and z TPU_PROCESS_ADDRESSES           the addresses that the processes
listen on, by their numbers TPU_PROCESS_PORT                the port that this process listens on CLOUD_TPU_TASK_ID
the number of this process, which becomes the process index of its devices

No page of Google's describes all of them; they are used identically in

https://github.com/pytorch/xla/blob/master/torch_xla/_internal/tpu.py (`configure_topology`)
https://github.com/jax-ml/jax/blob/main/jax/_src/test_multiprocess.py (`_main`)
https://gist.github.com/skye/f82ba45d2445bb19d53545538754f9a3 (by an author of JAX, with processes that work alone)

and libtpu 0.0.42.1 names them. With them a second process does not meet the lock (tests/runtime/xla/test_chips.py).
This module has not run on a TPU yet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from math import prod

from lazytpu.launcher import local_rank, local_size
from lazytpu.runtime.errors import PlatformError
from lazytpu.runtime.xla import slices

# Number of chips -> arrangement, for a machine that is a slice by itself, when no variable gives it (JAX's tests; chips
# 0 and 1 of four are neighbours along y).
_MACHINES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "4,2,1"}
_SYNONYMS = {"TPU_VISIBLE_CHIPS": ("TPU_VISIBLE_DEVICES", "TPU_VISIBLE_DEVICE_PATHS")}
_ARRANGEMENT = ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES")


def variables(chip: int, number: int, addresses: Sequence[str], bounds: str) -> dict[str, str]:
    """Return the variables of process `number` among the ones at `addresses`, which drives one chip of its machine."""
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": bounds,
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
        "TPU_PROCESS_PORT": addresses[number].rpartition(":")[2],
        "CLOUD_TPU_TASK_ID": str(number),
    }


def alone() -> None:
    """Set libtpu's variables for a process without a process group. Under a launcher it takes the chip of its local
    rank, otherwise all chips of the machine. Variables that the user has set stay unchanged.

    Raises PlatformError on one of several machines of a slice, where libtpu would wait for the others forever.
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
    """Set libtpu's variables for rank `rank` of a job with one process per chip. `addresses` are the processes'
    addresses by rank. Without a launcher, all are on this machine. Variables that the user has set stay unchanged.

    Raises PlatformError when the arrangement of so many chips is unknown, or if the user gives this process several.
    """
    launcher_rank = local_rank()
    bounds = os.environ.get("TPU_PROCESS_BOUNDS") or _bounds(len(addresses))
    _set(variables(rank if launcher_rank is None else launcher_rank, rank, addresses, bounds))
    visible = next(os.environ[name] for name in _names("TPU_VISIBLE_CHIPS") if name in os.environ)
    if len(visible.split(",")) > 1 and os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1":
        raise PlatformError(
            f"TPU_VISIBLE_CHIPS (or TPU_VISIBLE_DEVICES) is {visible} in rank {rank}, and a rank drives one chip: "
            "unset it, for the chip of LOCAL_RANK, or let it name another one in each rank"
        )


def address(host: str) -> str:
    """Return the address for libtpu to listen on: `host`, with the port that the user has set or a free one."""
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


def _set(values: Mapping[str, str]) -> None:
    for variable, value in values.items():
        if not any(name in os.environ for name in _names(variable)):
            os.environ[variable] = value
