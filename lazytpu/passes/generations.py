"""Hardware figures of TPU generations.

The figures are per chip and in decimal units, as Google publishes them on the page `source`.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9  # bytes; vendors count HBM of v5e and v6e, and all bandwidths, in powers of ten
GIB = 2**30
MIB = 2**20
TERA = 10**12


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of TPUs, with the `name` that topologies use ("v6e:2x2").

    A device of XLA is a chip, or half of one on a tpu7x: there are `devices` per chip. The properties `device_...` give
    one device's share of the chip's figures.
    """

    name: str
    kinds: tuple[str, ...]
    "XLA's names of the device, in lower case."
    flops: float
    "Peak bfloat16 operations per second; a multiply-add counts as two."
    hbm_bytes: int
    hbm_bandwidth: float
    "Bytes per second."
    ici_bandwidth: float
    "Bytes per second over all links between chips, in both directions together."
    ici_links: int
    matrix_unit: int
    "Rows and columns of one matrix unit."
    cores: int
    "TensorCores per chip."
    clock: float
    "Cycles per second of a TensorCore."
    vmem_bytes: int
    "Vector memory of one TensorCore, from jax's Pallas (`pltpu.get_tpu_info`)."
    source: str
    dcn_bandwidth: float
    """Bytes per second of a chip's share of the data center's network, in one direction: a pod of 256 v5e has 6.4 Tbps
    and one of v6e 25.6 (https://cloud.google.com/tpu/docs/v6e), a chip of v5p 50 Gbps, and one of tpu7x 100
    (https://cloud.google.com/tpu/docs/tpu7x)."""
    ring: int
    "The chips in a dimension of a slice that wrap around: a full pod's of a 2D torus, or a cube's of a 3D one."
    devices: int = 1
    tile: tuple[int, int] = (8, 128)
    "Sublanes and lanes of a vector register of 32-bit elements; the last two dimensions of an array are padded to it."

    def wraps(self, size: int) -> bool:
        """Whether `size` chips of a slice in one dimension form a ring."""
        return size % self.ring == 0

    @property
    def device_flops(self) -> float:
        """Peak bfloat16 operations per second of one device."""
        return self.flops / self.devices

    @property
    def device_hbm_bytes(self) -> int:
        """Bytes of memory of one device."""
        return self.hbm_bytes // self.devices

    @property
    def device_hbm_bandwidth(self) -> float:
        """Bytes per second between one device and its memory."""
        return self.hbm_bandwidth / self.devices

    @property
    def lane_rate(self) -> float:
        """Elements per second of one device, when each lane of its vector units processes one per cycle."""
        return self.tile[0] * self.tile[1] * self.clock * self.cores / self.devices

    def tile_of(self, bits: int) -> tuple[int, int]:
        """The tile for elements of `bits` bits. Narrow elements are packed along sublanes: (16, 128) for bfloat16."""
        return self.tile[0] * max(1, 32 // max(bits, 8)), self.tile[1]


# Clocks of v5e and v5p are flops / (2 * cores * 4 matrix units * 128 * 128). v6e: a product of 1024^3 takes at least
# 4,096 cycles at peak, and 4,440 in the compiler's own simulation; tpu7x likewise from its flops.
GENERATIONS: dict[str, Generation] = {
    generation.name: generation
    for generation in (
        Generation(
            "v5e", ("tpu v5 lite", "tpu v5e"), 197 * TERA, 16 * GB, 819 * GB, 400 * GB, 4, 128, 1, 1.5e9, 128 * MIB,
            "https://cloud.google.com/tpu/docs/v5e", 3.125 * GB, 16,
        ),
        Generation(
            "v5p", ("tpu v5", "tpu v5p"), 459 * TERA, 95 * GIB, 2_765 * GB, 1_200 * GB, 6, 128, 2, 1.75e9, 64 * MIB,
            "https://cloud.google.com/tpu/docs/v5p", 6.25 * GB, 4,
        ),
        Generation(
            "v6e", ("tpu v6 lite", "tpu v6e"), 918 * TERA, 32 * GB, 1_638 * GB, 800 * GB, 4, 256, 1, 1.75e9, 128 * MIB,
            "https://cloud.google.com/tpu/docs/v6e", 12.5 * GB, 16,
        ),
        Generation(
            "tpu7x", ("tpu7x", "tpu v7x", "tpu v7"), 2_307 * TERA, 192 * GIB, 7_380 * GB, 1_200 * GB, 6, 256, 2, 2.2e9,
            64 * MIB, "https://cloud.google.com/tpu/docs/tpu7x", 12.5 * GB, 4, devices=2,
        ),
    )
}  # fmt: skip
"All generations by name."


def generation_of(kind: str) -> str | None:
    """The generation of a device kind of XLA: "v6e" for "TPU v6 lite". None for an unknown kind."""
    return next((g.name for g in GENERATIONS.values() if kind.strip().lower() in g.kinds), None)
