"""From the `lazytpu` dialect to StableHLO, by jaxlib's MLIR builders.

`emit(module)` is the whole interface. One file per family of ops holds its lowering rules, named as in `lazytpu.ir`;
`templates/` holds JAX functions for the long tail, lowered once for each use and spliced in as private functions.
"""

from lazytpu.lowering.emit import emit
from lazytpu.lowering.errors import LoweringError
from lazytpu.lowering.text import stablehlo_text

__all__ = ["LoweringError", "emit", "stablehlo_text"]
