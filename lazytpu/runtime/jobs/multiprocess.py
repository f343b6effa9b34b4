"""The client of a process that is one of several: it knows the devices of all, and programs may communicate.

XLA's own recipe, without `jax.distributed`: that also swallows SIGTERM, and ends the survivors when a process is gone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.buffers import repadding
from lazytpu.runtime.buffers.buffer import Buffer, ConstantBuffer
from lazytpu.runtime.buffers.custom_layout import CustomLayoutBuffer
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.cache.fingerprint import environment, environment_digest
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.jobs.relay import Relay
from lazytpu.runtime.xla import chips, client
from lazytpu.runtime.xla.processor import without_half_arithmetic


class CannotJoin(RuntimeError):
    """This process cannot become one of several."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of a process in its job: it is `rank` of `size`, `service` is the address of the coordination service, `host` the
    own address. It waits for the other processes at most `timeout` seconds."""

    service: str
    rank: int
    size: int
    host: str
    timeout: float


def takes_chip(size: int) -> bool:
    """Whether this process has to take a chip of a TPU (`take_chip`) before it does anything else with the device.

    Raises CannotJoin when it is too late for that.
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
    """Whether a process that is one of several can leave the others for new ones: libtpu does not let go of a chip."""
    return client.platform() == "cpu"


def take_chip(place: Place, addresses: Sequence[str]) -> None:
    """Become one of several processes that have a chip of a TPU each: waits until all of them have called this.
    `addresses` are those of `chips.address`, by rank.

    Raises CannotJoin.
    """
    try:
        chips.together(place.rank, addresses)
        joined = client.make_tpu_client(_connection(place))
    except (client.XlaError, RuntimeError) as error:
        raise _cannot(place, error) from error
    found = sorted({device.process_index for device in joined.devices()})
    if joined.process_index() != place.rank or found != list(range(place.size)):
        raise CannotJoin(
            f"rank {place.rank} of {place.size} is process {joined.process_index()} to libtpu, which found the chips "
            f"of processes {found}: ranks have to follow the machines in the slice, with one rank for each chip (of "
            "torchrun, --node-rank is the machine's TPU_WORKER_ID), and TPU_* variables must agree with that"
        )
    client.use(joined)


def join(place: Place, forget: Callable[[], None]) -> None:
    """Become one of several processes that run on CPUs: waits until all of them have called this. A process that is the
    only one stays as it is on other platforms.

    What is on the device already moves to the new client, through the host; `forget` drops the programs of the old one.
    That is possible on a CPU alone: no other platform lets go of its device.

    Raises:
        NotImplementedError: the platform is another.
        CannotJoin: the others did not come, or a value is in a layout that cannot move.
    """
    if client.platform() != "cpu":
        if place.size == 1:
            return
        raise NotImplementedError(
            f"process groups on a {client.platform()}: they run on TPUs and CPUs (LAZYTPU_PLATFORM=cpu)"
        )
    environment()  # as of a single process: its programs are the same
    environment_digest()
    try:
        joined = _client(place)
    except (client.XlaError, RuntimeError) as error:
        raise _cannot(place, error) from error
    held = _held()
    client.use(joined)
    repadding.forget()
    forget()
    for buffer, name, values in held:
        setattr(buffer, name, client.to_device(values))


def _cannot(place: Place, error: Exception) -> CannotJoin:
    return CannotJoin(f"rank {place.rank} of {place.size} could not join the others at {place.service}: {error}")


def _connection(place: Place) -> Any:
    """Connected to the coordination service, by a relay; waits until all processes are."""
    relay = Relay(*place.service.rsplit(":", 1))
    connection = client.distributed_client(
        relay.address,
        place.rank,
        init_timeout=max(1, round(place.timeout)),
        heartbeat_timeout=10**6,  # seconds: the default ends this process when another is gone
        shutdown_on_destruction=False,
        use_compression=True,
    )
    connection.connect()
    return connection


def _client(place: Place) -> Any:
    """A client of the CPU whose devices are those of all processes; waits for them."""
    connection = _connection(place)
    # jax lets it listen on what the host name means.
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
    """Every array on the device: the buffer, the name of its attribute, and the values."""
    found: list[tuple[Buffer, str, Any]] = []
    buffers = [each for each in gc.get_objects() if issubclass(type(each), Buffer)]  # isinstance() calls their code
    for buffer in buffers:
        if isinstance(buffer, CustomLayoutBuffer):
            raise CannotJoin(
                "a parameter is kept in a layout of the compiler's already: call "
                "torch.distributed.init_process_group() before the first training step"
            )
        if isinstance(buffer, PaddedBuffer):
            found.extend([(buffer, name, client.to_host(array)) for name, array in buffer.arrays()])
            continue
        if buffer.array is not None and not client.is_deleted(buffer.array):
            host = buffer.host if isinstance(buffer, ConstantBuffer) else None
            try:
                found.append((buffer, "array", client.to_host(buffer.array) if host is None else host))
            except RunError as error:  # what computes it has failed, as a collective of a group that is broken
                buffer.error = RunError(error.program, error.reason, None)
    return found
