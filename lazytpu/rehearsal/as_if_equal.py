"""Reads in the rehearsal of an imagined job: a trace with collectives is computed on the host, as if all ranks held the
same. DistributedDataParallel reads the order of its buckets after a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.aten.host_arrays import copied, to_numpy
from lazytpu.engine.cutting.host_records import computable, compute, last_uses
from lazytpu.runtime.xla import client
from lazytpu.trace.extract import Slots
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan, Record

LIBRARY = "lazytpu_dist."


def is_imagined(records: Sequence[Record]) -> bool:
    """Return whether the program of these records is for all ranks of an imagined job."""
    return any(record.arguments.get("mesh") for record in records if str(record.op).startswith(LIBRARY))


def computed(plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Any] | None:
    """Return arrays of the slots `live`; None if the host cannot compute an op of the trace."""
    records = trace.state.records()
    layouts = Slots(records).layouts
    if not all(str(record.op).startswith(LIBRARY) or computable(record, layouts) for record in records):
        return None
    flat: dict[int, torch.Tensor] = {
        slot: copied(buffer.fetch() if buffer.host is None else buffer.host, layouts[slot].dtype)
        for slot, buffer in zip(plan.inputs, trace.buffers, strict=True)
    }
    for record, over in zip(records, last_uses(records, live), strict=True):
        compute(record, flat, layouts, trace.numbers, over)
    return [client.to_device(to_numpy(flat[slot]).reshape(layouts[slot].memory_shape)) for slot in live]
