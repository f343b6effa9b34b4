"""Generations of TPUs: what a pass may reckon with.

Figures are those that Google publishes, per chip, in decimal units; `source` is the page.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
GIB = 2**30
MIB = 2**20
TERA = 10**12


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of TPUs; `name` as topologies spell it ("v6e:2x2").

    XLA's device is a chip, but on a tpu7x half of one: `devices` per chip. Where the chip's figures are shared by its
    devices, the properties `device_...` give one device's part.
    """

    name: str
    kinds: tuple[str, ...]
    "What XLA calls the device, in lower case."
    flops: float
    "Peak bfloat16 operations a second; a multiplication and its addition are two."
    hbm_bytes: int
    hbm_bandwidth: float
    "Bytes a second."
    ici_bandwidth: float
    "Bytes a second of all links between chips, both directions together."
    ici_links: int
    matrix_unit: int
    "Rows and columns of one matrix unit."
    cores: int
    "TensorCores per chip."
    clock: float
    "Cycles a second of a TensorCore."
    vmem_bytes: int
    "Vector memory of one TensorCore, as jax's Pallas has it for each generation (`pltpu.get_tpu_info`)."
    source: str
    devices: int = 1
    tile: tuple[int, int] = (8, 128)
    "Sublanes and lanes of a vector register of 32-bit elements: the last two dimensions of an array are padded to it."

    @property
    def device_flops(self) -> float:
        """Peak bfloat16 operations a second of one device."""
        return self.flops / self.devices

    @property
    def device_hbm_bytes(self) -> int:
        """Bytes of memory of one device."""
        return self.hbm_bytes // self.devices

    @property
    def device_hbm_bandwidth(self) -> float:
        """Bytes a second between one device and its memory."""
        return self.hbm_bandwidth / self.devices

    @property
    def lane_rate(self) -> float:
        """Elements a second of one device that each lane of a vector unit takes one of in a cycle."""
        return self.tile[0] * self.tile[1] * self.clock * self.cores / self.devices

    def tile_of(self, bits: int) -> tuple[int, int]:
        """The tile of elements of this many bits: narrower ones are packed along sublanes, (16, 128) for bfloat16."""
        return self.tile[0] * max(1, 32 // max(bits, 8)), self.tile[1]


# Clocks: v5e and v5p are flops / (2 * cores * 4 matrix units * 128 * 128). v6e: 4,096 cycles are the least in which a
# product of 1024^3 can be done at peak, and the compiler's own simulation takes 4,440; tpu7x likewise from its flops.
GENERATIONS: dict[str, Generation] = {
    each.name: each
    for each in (
        Generation(
            "v5e", ("tpu v5 lite", "tpu v5e"), 197 * TERA, 16 * GB, 819 * GB, 400 * GB, 4, 128, 1, 1.5e9, 128 * MIB,
            "https://cloud.google.com/tpu/docs/v5e",
        ),
        Generation(
            "v5p", ("tpu v5", "tpu v5p"), 459 * TERA, 95 * GIB, 2_765 * GB, 1_200 * GB, 6, 128, 2, 1.75e9, 64 * MIB,
            "https://cloud.google.com/tpu/docs/v5p",
        ),
        Generation(
            "v6e", ("tpu v6 lite", "tpu v6e"), 918 * TERA, 32 * GB, 1_638 * GB, 800 * GB, 4, 256, 1, 1.75e9, 128 * MIB,
            "https://cloud.google.com/tpu/docs/v6e",
        ),
        Generation(
            "tpu7x", ("tpu7x", "tpu v7x", "tpu v7"), 2_307 * TERA, 192 * GIB, 7_380 * GB, 1_200 * GB, 6, 256, 2, 2.2e9,
            64 * MIB, "https://cloud.google.com/tpu/docs/tpu7x", devices=2,
        ),
    )
}  # fmt: skip
"All generations by name."


def generation_of(kind: str) -> str | None:
    """The name of the generation that XLA calls "TPU v6 lite"; None for another."""
    return next((each.name for each in GENERATIONS.values() if kind.strip().lower() in each.kinds), None)
