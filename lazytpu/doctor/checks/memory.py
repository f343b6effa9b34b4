"""The device's memory: donation, updates in place, layouts, statistics; and asynchronous runs."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import lazytpu
from lazytpu.doctor.check import check

if TYPE_CHECKING:
    from lazytpu.runtime.xla.program import Program

tpu: Any = torch.tpu  # pyright: ignore[reportAttributeAccessIssue]
COUNT = 1 << 20  # elements: 4 MiB, beside which other allocations are small
ROWS, COLUMNS = 24, 40


@check()
def donation() -> str:
    """A program overwrites a donated argument: the argument is deleted, and the result takes its memory."""
    import numpy as np

    from lazytpu.runtime.xla import client

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
        raise ValueError("the donated argument was not deleted")
    if before is None:
        return "the argument is deleted; this client does not report addresses"
    if _address(result) != before:
        raise ValueError("the result has new memory: updates of parameters take twice their memory")
    return "the result is in the memory of its argument"


@check()
def updates_in_place() -> str:
    """Updates in place need no second copy of a tensor on the device."""
    x = torch.zeros(COUNT, device="tpu")
    tpu.synchronize()
    for _ in range(3):
        x.add_(1)
        tpu.synchronize()
    tpu.reset_peak_memory_stats()
    live = tpu.memory_allocated()
    x.add_(1)
    tpu.synchronize()
    extra = tpu.max_memory_allocated() - live
    if extra >= 4 * COUNT:
        raise ValueError(f"adding to {4 * COUNT:,} bytes took {extra:,} more bytes")
    if x[5].item() != 4:
        raise ValueError(f"0 + 1 + 1 + 1 + 1 gave {x[5].item()}")
    return f"adding to {4 * COUNT:,} bytes took {extra:,} more bytes"


@check()
def layouts() -> str:
    """A program may choose the layout of its results, and the program that takes them reads it correctly."""
    import numpy as np

    from lazytpu.runtime.buffers.custom_layout import relayout
    from lazytpu.runtime.xla import client
    from lazytpu.runtime.xla.layouts import default_layout

    array = client.to_device(np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS))
    default = default_layout(np.dtype(np.float32), (ROWS, COLUMNS))
    by_columns = relayout(array, None, "{0,1}")
    for layout, moved in (
        ("laid out by columns", by_columns),
        ("laid out by rows again", relayout(by_columns, "{0,1}", None)),
    ):
        if not np.array_equal(client.to_host(moved), client.to_host(array)):
            raise ValueError(f"an array {layout} has other values")
    return f"by rows {default}, by columns {{0,1}}"


@check()
def statistics() -> str:
    """The client reports how much memory there is and how much is in use."""
    from lazytpu.runtime.xla import client

    device = client.devices()[0]
    before = device.memory_stats()
    free, total = tpu.mem_get_info()
    memory = f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB free"
    if not before:
        return f"{memory} on the host: this client keeps no statistics"
    tensor = torch.ones(COUNT, device="tpu")
    tpu.synchronize()
    grown = device.memory_stats()["bytes_in_use"] - before["bytes_in_use"]
    if grown < tensor.nbytes:
        raise ValueError(f"{tensor.nbytes:,} more bytes are reported as {grown:,}")
    return f"{memory}; {', '.join(f'{name} {number:,}' for name, number in sorted(before.items()))}"


@check()
def asynchronous_runs() -> str:
    """A launch returns before the device is done, so that the host can prepare the next step."""
    from lazytpu.runtime.xla import client

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
    times = f"4 launches took {1e3 * launched:.1f} ms, and the device {1e3 * total:.1f} ms"
    if launched > 0.7 * total:
        raise NotImplementedError(f"{times}: this client waits for every run")
    return times


def _address(array: Any) -> int | None:
    """The address of an array; None if the client does not report it."""
    from lazytpu.runtime.xla import client

    try:
        return client.address(array)
    except (client.XlaError, NotImplementedError):
        return None


def _compiled(main: str) -> Program:
    from lazytpu.runtime.xla import client
    from lazytpu.runtime.xla.mlir import ir
    from lazytpu.runtime.xla.program import Program

    with client.mlir_context():
        module: Any = ir.Module.parse(f"module @check {{ {main} }}")
        return Program.compile(module, name="check")
