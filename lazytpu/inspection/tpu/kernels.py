"""Pallas kernels, timed by the cost estimate that their author attached.

The compiler schedules a kernel as a whole and gives no time for it. Its simulation of the emitted code, which can be
switched on, does not help: it takes branches without knowing the data that decides them, and gives attention's second
backward kernel less time than the matrix unit's peak allows.
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
    """A kernel's own estimate of one run: `flops` of its products, `transcendentals`, `bytes` read and written, and
    `passes` of the matrix unit per product."""

    flops: float
    transcendentals: float
    bytes: float
    passes: int = 1

    @classmethod
    def of(cls, op: Op) -> Estimate | None:
        """Return the estimate of a kernel; None if it has none, and for other ops."""
        estimate = op.config.get("custom_call_config", {}).get("cost_estimate") if op.target == KERNEL else None
        if not estimate:
            return None
        flops, transcendentals, moved = (
            float(estimate.get(name, 0)) for name in ("flops", "transcendentals", "bytes_accessed")
        )
        metadata = json.loads(op.frontend.get("kernel_metadata") or "{}")
        return cls(flops, transcendentals, moved, int(metadata.get(PASSES_OF_KERNEL, 1)))

    def seconds(self, hbm_bytes: float, facts: Generation) -> tuple[float, str]:
        """Return the seconds at the chip's peak rates, and their bound. Each lane of the vector unit computes one
        transcendental per cycle."""
        return max(
            (self.flops * self.passes / facts.device_flops, "matrix unit"),
            (self.transcendentals / facts.lane_rate, "vector unit"),
            (hbm_bytes / facts.device_hbm_bandwidth, "HBM"),
        )


def hbm_bytes(estimate: Estimate, op: Op, operands: Sequence[Array]) -> float:
    """Return the bytes that one run of a kernel moves to and from HBM.

    The estimate counts elements in any memory. It is scaled to the arrays in HBM, with the padding of their tiles.
    Results are written as a whole unless they alias operands.
    """
    arrays = (*operands, *op.results)
    elements = sum(array.bytes for array in arrays)
    share = sum(array.hbm_bytes for array in arrays) / elements if elements else 0.0
    written = 0 if op.in_operands else sum(array.hbm_bytes for array in op.results)
    return max(estimate.bytes * share, written)
