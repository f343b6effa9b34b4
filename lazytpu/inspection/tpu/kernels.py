"""Kernels written with Pallas, and how long they take: by the cost estimate that whoever wrote one put beside it.

The compiler schedules a kernel as a whole and says nothing of its time. Its simulation of emitted code, which it can be
made to write, is no help either: it takes branches without knowing the data that decides them, and gives attention's
second backward kernel less time than the matrix unit's peak allows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import KERNEL, Op
from lazytpu.ir.attention_work import PASSES_OF_KERNEL
from lazytpu.passes.generations import Generation


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one run of a kernel takes, as it says itself: `flops` of its products, `transcendentals`, and `bytes` that
    it reads and writes; `passes` of the matrix unit that a product takes."""

    flops: float
    transcendentals: float
    bytes: float
    passes: int = 1

    @classmethod
    def of(cls, op: Op) -> Estimate | None:
        """That of a kernel; None when it gives none, and for another op."""
        told = op.config.get("custom_call_config", {}).get("cost_estimate") if op.target == KERNEL else None
        if not told:
            return None
        flops, transcendentals, moved = (
            float(told.get(name, 0)) for name in ("flops", "transcendentals", "bytes_accessed")
        )
        metadata = json.loads(op.frontend.get("kernel_metadata") or "{}")
        return cls(flops, transcendentals, moved, int(metadata.get(PASSES_OF_KERNEL, 1)))

    def seconds(self, hbm_bytes: float, facts: Generation) -> tuple[float, str]:
        """How long that takes at the chip's peaks, and what decides it. Each lane of the vector unit has one
        transcendental a cycle."""
        return max(
            (self.flops * self.passes / facts.device_flops, "matrix unit"),
            (self.transcendentals / facts.lane_rate, "vector unit"),
            (hbm_bytes / facts.device_hbm_bandwidth, "HBM"),
        )


def hbm_bytes(estimate: Estimate, op: Op, given: Sequence[Array]) -> float:
    """Bytes that one run of a kernel moves to and from HBM. The estimate counts elements, wherever they lie: of its
    bytes those count whose arrays lie in HBM, with the padding of their tiles. Results are written as a whole, unless
    they lie in operands' memory."""
    arrays = (*given, *op.results)
    elements = sum(each.bytes for each in arrays)
    share = sum(each.hbm_bytes for each in arrays) / elements if elements else 0.0
    written = 0 if op.in_operands else sum(each.hbm_bytes for each in op.results)
    return max(estimate.bytes * share, written)
