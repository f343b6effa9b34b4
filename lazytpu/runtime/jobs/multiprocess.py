"""The client of a process in a multi-process job: it sees the devices of all processes, and programs may communicate.

It follows XLA's own recipe, without `jax.distributed`, which also swallows SIGTERM and ends the survivors when a
process dies.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.buffers import repadding
from lazytpu.runtime.buffers.buffer import Buffer, KnownBuffer
from lazytpu.runtime.buffers.custom_layout import CustomLayoutBuffer
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.cache.fingerprint import environment, environment_digest
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.jobs.relay import Relay
from lazytpu.runtime.xla import chips, client
from lazytpu.runtime.xla.processor import without_half_arithmetic


class CannotJoin(RuntimeError):
    """This process cannot join a multi-process job."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process in its job: `rank` of `size`, the address `service` of the coordination service, and its
    own address `host`. It waits for the other processes for at most `timeout` seconds."""

    service: str
    rank: int
    size: int
    host: str
    timeout: float


def takes_chip(size: int) -> bool:
    """Whether this process has to take a TPU chip (`take_chip`) before any other use of the device.

    Raises CannotJoin when the device is in use already.
    """
    if size == 1 or not client.seeks_tpu():
        return False
    if client.is_there():
        raise CannotJoin(
            "this process has taken its TPU for itself already, and libtpu does not let go of it: call "
            "torch.distributed.init_process_group() before the first tensor on the device, and before jax uses it"
        )
    return True


def can_join_again() -> bool:
    """Whether a process can leave its job for a new one. On a TPU it cannot: libtpu never releases a chip."""
    return client.platform() == "cpu"


def take_chip(place: Place, addresses: Sequence[str]) -> None:
    """Join a job with one TPU chip for each process, and wait until all processes have called this. `addresses` are the
    results of `chips.address`, by rank.

    Raises CannotJoin.
    """
    try:
        chips.together(place.rank, addresses)
        joined = client.make_tpu_client(_connection(place))
    except (client.XlaError, RuntimeError) as error:
        raise _cannot(place, error) from error
    indices = sorted({device.process_index for device in joined.devices()})
    if joined.process_index() != place.rank or indices != list(range(place.size)):
        raise CannotJoin(
            f"rank {place.rank} of {place.size} is process {joined.process_index()} to libtpu, which found the chips "
            f"of processes {indices}: ranks have to follow the machines in the slice, with one rank for each chip (of "
            "torchrun, --node-rank is the machine's TPU_WORKER_ID), and TPU_* variables must agree with that"
        )
    client.use(joined)


def join(place: Place, forget: Callable[[], None]) -> None:
    """Join a job on CPUs, and wait until all processes have called this. On other platforms, a job of one process needs
    no change.

    Values on the device move to the new client, through the host; `forget` drops the programs of the old one. Only a
    CPU client allows this, since other platforms do not release their device.

    Raises:
        NotImplementedError: the platform is another.
        CannotJoin: the other processes did not come, or a value has a layout that cannot move.
    """
    if client.platform() != "cpu":
        if place.size == 1:
            return
        raise NotImplementedError(
            f"process groups on a {client.platform()}: they run on TPUs and CPUs (LAZYTPU_PLATFORM=cpu)"
        )
    environment()  # compute it as a single process, which has the same programs
    environment_digest()
    try:
        joined = _client(place)
    except (client.XlaError, RuntimeError) as error:
        raise _cannot(place, error) from error
    arrays = _held()
    client.use(joined)
    repadding.forget()
    forget()
    for buffer, name, values in arrays:
        setattr(buffer, name, client.to_device(values))


def _cannot(place: Place, error: Exception) -> CannotJoin:
    return CannotJoin(f"rank {place.rank} of {place.size} could not join the others at {place.service}: {error}")


def _connection(place: Place) -> Any:
    """Connect to the coordination service through a relay, and wait until all processes are connected."""
    relay = Relay(*place.service.rsplit(":", 1))
    connection = client.distributed_client(
        relay.address,
        place.rank,
        init_timeout=max(1, round(place.timeout)),
        heartbeat_timeout=10**6,  # seconds: the default ends this process when another one dies
        shutdown_on_destruction=False,
        use_compression=True,
    )
    connection.connect()
    return connection


def _client(place: Place) -> Any:
    """Make a CPU client whose devices are those of all processes; wait for them."""
    connection = _connection(place)
    # By default, jax listens on the address of the host name.
    collectives = client.gloo_collectives(connection, place.host, None)
    with without_half_arithmetic():
        return client.make_cpu_client(
            asynchronous=True,
            distributed_client=connection,
            node_id=place.rank,
            num_nodes=place.size,
            collectives=collectives,
        )


def _held() -> list[tuple[Buffer, str, Any]]:
    """Return every array on the device: (buffer, name of its attribute, values)."""
    arrays: list[tuple[Buffer, str, Any]] = []
    # isinstance() would run code of the objects
    buffers = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), Buffer)]
    for buffer in buffers:
        if isinstance(buffer, CustomLayoutBuffer):
            raise CannotJoin(
                "a parameter is kept in a layout of the compiler's already: call "
                "torch.distributed.init_process_group() before the first training step"
            )
        if isinstance(buffer, PaddedBuffer):
            arrays.extend([(buffer, name, client.to_host(array)) for name, array in buffer.arrays()])
            continue
        if buffer.array is not None and not client.is_deleted(buffer.array):
            host = buffer.host if isinstance(buffer, KnownBuffer) else None
            try:
                arrays.append((buffer, "array", client.to_host(buffer.array) if host is None else host))
            except RunError as error:  # its program failed, for example a collective of a broken group
                buffer.error = RunError(error.program, error.reason, None)
    return arrays
