"""The client of a process that is one of several: it knows the devices of all, and programs may communicate.

XLA's own recipe, without `jax.distributed`: that also swallows SIGTERM, and ends the survivors when a process is gone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from lazytpu.runtime import client, repadding
from lazytpu.runtime.buffer import Buffer, ConstantBuffer
from lazytpu.runtime.cache.fingerprint import environment, environment_digest
from lazytpu.runtime.custom_layout import CustomLayoutBuffer
from lazytpu.runtime.padded import PaddedBuffer
from lazytpu.runtime.processor import without_half_arithmetic
from lazytpu.runtime.relay import Relay


class CannotJoin(RuntimeError):
    """This process cannot become one of several."""


def join(service: str, rank: int, size: int, host: str, timeout: float, forget: Callable[[], None]) -> None:
    """Become process `rank` of `size`: waits, at most `timeout` seconds, until all of them have called this. `service`
    is the address of the coordination service, `host` the own address, where the collectives of a CPU listen.

    What is on the device already moves to the new client, through the host; `forget` drops the programs of the old one.
    That is possible on a CPU alone: no other platform lets go of its device.

    Raises:
        NotImplementedError: the platform is another.
        CannotJoin: the others did not come, or a value is in a layout that cannot move.
    """
    if client.platform() != "cpu":
        raise NotImplementedError(
            f"process groups on a {client.platform()}: so far they run on the CPU alone (LAZYTPU_PLATFORM=cpu)"
        )
    environment()  # as of a single process: its programs are the same
    environment_digest()
    try:
        joined = _client(service, rank, size, host, timeout)
    except (client.XlaError, RuntimeError) as error:
        raise CannotJoin(f"rank {rank} of {size} could not join the others at {service}: {error}") from error
    held = _held()
    client.use(joined)
    repadding.forget()
    forget()
    for buffer, name, values in held:
        setattr(buffer, name, client.to_device(values))


def _client(service: str, rank: int, size: int, host: str, timeout: float) -> Any:
    """A client of the CPU whose devices are those of all processes; waits for them."""
    relay = Relay(*service.rsplit(":", 1))
    connection = client.distributed_client(
        relay.address,
        rank,
        init_timeout=max(1, round(timeout)),
        heartbeat_timeout=10**6,  # seconds: the default ends this process when another is gone
        shutdown_on_destruction=False,
        use_compression=True,
    )
    connection.connect()
    collectives = client.gloo_collectives(connection, host, None)  # jax lets it listen on what the host name means
    with without_half_arithmetic():
        return client.make_cpu_client(
            asynchronous=True, distributed_client=connection, node_id=rank, num_nodes=size, collectives=collectives
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
            found.append((buffer, "array", client.to_host(buffer.array) if host is None else host))
    return found
