"""How long XLA will take to compile a module, before it is asked to: a count of its ops, each with a weight.

The weights are those of XLA:CPU (jaxlib 0.10.2, an Intel Xeon), fitted over 32 modules: training steps of a GPT, a
BERT, a U-Net, a ResNet, a GAN, a VAE, an ODE solver and recurrent layers, and modules of one kind of op. Two thirds of
the estimates are within a factor of 1.6, all within 3. What another machine or compiler needs is a factor (`costs`).
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
    """What a module costs, in CPU seconds of the reference: to compile it in full (`full`), and with less optimisation
    (`quick`); and how much longer one run of the quick program takes (`slower`)."""

    full: float = 0.0
    quick: float = 0.0
    slower: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.full + other.full, self.quick + other.quick, self.slower + other.slower)


BASE = Work(0.02, 0.01)
"Of any module."

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
"Seconds that code without optimisation takes longer for an element of an op's result."
PRODUCT = 0.8e-9
"The same for a product in a convolution: XLA writes out those that Eigen does not know, as in backward passes."
RUNS = 8
"How often a loop is taken to run whose count is not known before it does."


def work(module: Operation) -> Work:
    """What compiling a module costs. A walk over its ops, some 2 us each."""
    return BASE + _inside(module, 1)


def _inside(parent: Operation, runs: int) -> Work:
    full = quick = slower = 0.0
    for region in parent.regions:
        for block in region.blocks:
            for op in block.ops:
                of_full, of_quick = _OPS.get(op.name, _POINTWISE)
                full += 1e-3 * of_full
                quick += 1e-3 * of_quick
                if op.regions:
                    times = (RUNS if (known := trips(op)) is None else known) if isinstance(op, WhileOp) else 1
                    inner = _inside(op, runs * times)
                    full, quick, slower = full + inner.full, quick + inner.quick, slower + inner.slower
                elif op.results:
                    slower += runs * _slower(op)
    return Work(full, quick, slower)


def _slower(op: Operation) -> float:
    elements = sum(numel(shape_of(result)) for result in op.results)
    if isinstance(op, ConvolutionOp):
        kernel = shape_of(op.kernel)
        made = kernel[op.layout.data.split(",")[1].index("O")]
        return PRODUCT * elements * numel(kernel) / max(1, made)
    return ELEMENT * elements
