"""Estimates of XLA's compile time for a module: a weighted count of its ops.

The weights are for XLA:CPU (jaxlib 0.10.2, an Intel Xeon), fitted over 32 modules: training steps of a GPT, a BERT, a
U-Net, a ResNet, a GAN, a VAE, an ODE solver and recurrent layers, and modules of one kind of op. Two thirds of the
estimates are within a factor of 1.6, all within 3. Another machine or compiler differs by a factor (`costs`).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation

from lazytpu.ir.contractions import ConvolutionOp
from lazytpu.ir.control import WhileOp
from lazytpu.ir.types import numel, shape_of
from lazytpu.passes.patterns.trips import trips


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of a module in CPU seconds of the reference machine: of a full compilation (`full`), of one with less
    optimisation (`quick`), and the extra time of one run of the quick program (`slower`)."""

    full: float = 0.0
    quick: float = 0.0
    slower: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.full + other.full, self.quick + other.quick, self.slower + other.slower)


BASE = Work(0.02, 0.01)
"""The cost of any module."""

# Milliseconds of an op, in full and with less optimisation.
_CALL, _INDEX, _MOVE, _FREE, _POINTWISE = (20.0, 15.0), (18.0, 0.9), (1.2, 0.6), (1.8, 0.2), (1.1, 0.25)
_OPS = {
    "lazytpu.convolution": (30.0, 1.3),
    "lazytpu.dot_general": (2.0, 0.6),
    **dict.fromkeys(("lazytpu.reduce", "lazytpu.reduce_window", "lazytpu.argreduce", "lazytpu.cumulative"), (1.5, 1.6)),
    **dict.fromkeys(("lazytpu.gather", "lazytpu.scatter"), _INDEX),
    **dict.fromkeys(("lazytpu.dynamic_slice", "lazytpu.dynamic_update_slice"), _INDEX),
    **dict.fromkeys(("lazytpu.sort", "lazytpu.while", "lazytpu.if", "lazytpu.random_bits"), _CALL),
    **dict.fromkeys(("lazytpu.template", "lazytpu.jax_call", "lazytpu.attention", "lazytpu.attention_backward"), _CALL),
    **dict.fromkeys(("lazytpu.concatenate", "lazytpu.pad", "lazytpu.slice", "lazytpu.reverse"), _MOVE),
    **dict.fromkeys(("lazytpu.reshape", "lazytpu.broadcast_in_dim", "lazytpu.transpose", "lazytpu.iota"), _FREE),
    **dict.fromkeys(("lazytpu.constant", "lazytpu.dense_constant", "lazytpu.number", "lazytpu.yield"), _FREE),
}

ELEMENT = 1.5e-9
"""Extra seconds for an element of an op's result in code without optimisation."""
PRODUCT = 0.8e-9
"""Extra seconds for a product in a convolution: XLA expands convolutions that Eigen does not support, such as in
backward passes."""
RUNS = 8
"""Assumed iterations of a loop whose trip count is not constant."""


def work(module: Operation) -> Work:
    """Return the cost of a module, in a walk over its ops of some 2 us each."""
    return BASE + _inside(module, 1)


def _inside(parent: Operation, runs: int) -> Work:
    """Return the cost of the ops in the regions of `parent`, which run `runs` times."""
    full = quick = slower = 0.0
    for region in parent.regions:
        for block in region.blocks:
            for op in block.ops:
                of_full, of_quick = _OPS.get(op.name, _POINTWISE)
                full += 1e-3 * of_full
                quick += 1e-3 * of_quick
                if op.regions:
                    times = (
                        (RUNS if (constant_trips := trips(op)) is None else constant_trips)
                        if isinstance(op, WhileOp)
                        else 1
                    )
                    inner = _inside(op, runs * times)
                    full, quick, slower = full + inner.full, quick + inner.quick, slower + inner.slower
                elif op.results:
                    slower += runs * _slower(op)
    return Work(full, quick, slower)


def _slower(op: Operation) -> float:
    """Return the extra seconds of an op in code without optimisation."""
    elements = sum(numel(shape_of(result)) for result in op.results)
    if isinstance(op, ConvolutionOp):
        kernel = shape_of(op.kernel)
        output_features = kernel[op.layout.data.split(",")[1].index("O")]
        return PRODUCT * elements * numel(kernel) / max(1, output_features)
    return ELEMENT * elements
