"""Lowers the `lazytpu` dialect to StableHLO, with jaxlib's MLIR builders.

`emit(module)` is the whole interface. One file per op family, named as in `lazytpu.ir`, holds its lowering rules;
`templates/` holds JAX functions for the long tail of ops, which are lowered and spliced in as private functions.
"""

from lazytpu.lowering.emit import emit
from lazytpu.lowering.errors import LoweringError
from lazytpu.lowering.text import stablehlo_text

__all__ = ["LoweringError", "emit", "stablehlo_text"]
