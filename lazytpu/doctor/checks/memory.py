"""The device's memory: what programs overwrite, how arrays lie, how much there is; and runs that nobody waits for."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import lazytpu
from lazytpu.doctor.check import check

if TYPE_CHECKING:
    from lazytpu.runtime.program import Program

tpu: Any = torch.tpu  # pyright: ignore[reportAttributeAccessIssue]
COUNT = 1 << 20
ROWS, COLUMNS = 24, 40


@check()
def donation() -> str:
    """A program overwrites an argument that it may have: the argument is gone, and its memory is the result's."""
    import numpy as np

    from lazytpu.runtime import client

    kind = f"tensor<{COUNT}xf32>"
    program = _compiled(
        f"""func.func public @main(%x: {kind} {{tf.aliasing_output = 0 : i32}}) -> {kind} {{
        %y = stablehlo.add %x, %x : {kind}
        return %y : {kind} }}"""
    )
    array = client.to_device(np.arange(COUNT, dtype=np.float32))
    before = _address(array)
    (result,) = program.run([array])
    if client.to_host(result)[3] != 6:
        raise ValueError(f"3 + 3 gave {client.to_host(result)[3]}")
    if not client.is_deleted(array):
        raise ValueError("the argument is still there")
    if before is None:
        return "the argument is gone; this client does not say where an array lies"
    if _address(result) != before:
        raise ValueError("the result lies elsewhere: updates of parameters take twice their memory")
    return "the result lies where its argument did"


@check()
def updates_in_place() -> str:
    """Training updates need no second copy: a tensor that is added to keeps its size on the device."""
    x = torch.zeros(COUNT, device="tpu")
    tpu.synchronize()
    for _ in range(3):
        x.add_(1)
        tpu.synchronize()
    tpu.reset_peak_memory_stats()
    live = tpu.memory_allocated()
    x.add_(1)
    tpu.synchronize()
    more = tpu.max_memory_allocated() - live
    if more >= 4 * COUNT:
        raise ValueError(f"adding to {4 * COUNT:,} bytes took {more:,} bytes more")
    if x[5].item() != 4:
        raise ValueError(f"0 + 1 + 1 + 1 + 1 gave {x[5].item()}")
    return f"adding to {4 * COUNT:,} bytes took {more:,} more"


@check()
def layouts() -> str:
    """A program may say how its results lie in memory, and a program that takes them knows."""
    import numpy as np

    from lazytpu.runtime import client
    from lazytpu.runtime.custom_layout import relayout
    from lazytpu.runtime.layouts import default_layout

    array = client.to_device(np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
    default = default_layout(np.dtype(np.float32), (ROWS, COLUMNS))
    laid = relayout(array, None, "{0,1}")
    for what, found in (("laid out by columns", laid), ("laid out anew", relayout(laid, "{0,1}", None))):
        if not np.array_equal(client.to_host(found), client.to_host(array)):
            raise ValueError(f"an array {what} has other values")
    return f"by rows {default}, by columns {{0,1}}"


@check()
def statistics() -> str:
    """The client says how much memory there is, and how much is in use."""
    from lazytpu.runtime import client

    device = client.devices()[0]
    before = device.memory_stats()
    free, total = tpu.mem_get_info()
    told = f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB free"
    if not before:
        return f"{told}, of the host's: this client keeps no figures of its own"
    kept = torch.ones(COUNT, device="tpu")
    tpu.synchronize()
    grown = device.memory_stats()["bytes_in_use"] - before["bytes_in_use"]
    if grown < kept.nbytes:
        raise ValueError(f"{kept.nbytes:,} bytes more are said to be {grown:,}")
    return f"{told}; {', '.join(f'{name} {number:,}' for name, number in sorted(before.items()))}"


@check()
def asynchronous_runs() -> str:
    """A launch returns before the device is done, so that the host may prepare the next step meanwhile."""
    from lazytpu.runtime import client

    size = 768 if client.platform() == "cpu" else 8192
    a = torch.randn(size, size, device="tpu") / size

    def step(a: torch.Tensor) -> torch.Tensor:
        b = a @ a
        lazytpu.mark_step()
        return b

    step(step(a))
    tpu.synchronize()
    start = perf_counter()
    for _ in range(4):
        a = step(a)
    launched = perf_counter() - start
    tpu.synchronize()
    total = perf_counter() - start
    told = f"4 launches took {1e3 * launched:.1f} ms, and the device {1e3 * total:.1f} ms"
    if launched > 0.7 * total:
        raise NotImplementedError(f"{told}: this client waits for each run")
    return told


def _address(array: Any) -> int | None:
    """Where an array lies; None for a client that does not say."""
    from lazytpu.runtime import client

    try:
        return client.address(array)
    except (client.XlaError, NotImplementedError):
        return None


def _compiled(main: str) -> Program:
    from lazytpu.runtime import client
    from lazytpu.runtime.mlir import ir
    from lazytpu.runtime.program import Program

    with client.mlir_context():
        module: Any = ir.Module.parse(f"module @check {{ {main} }}")
        return Program.compile(module, name="check")
