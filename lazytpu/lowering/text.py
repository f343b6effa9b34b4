"""StableHLO as text, for dumps."""

from __future__ import annotations

from lazytpu.runtime.mlir import ir


def stablehlo_text(module: ir.Module, *, locations: bool = False, elide_above: int | None = None) -> str:
    """The module as MLIR text. Parameters are named as the program names them (`%layers.0.weight`).

    With `locations` the text carries source lines. Constants of more than `elide_above` elements are left out, which
    makes the text good for reading only; by default it is whole, and any StableHLO tool reads it.
    """
    return str(
        module.operation.get_asm(
            enable_debug_info=locations, large_elements_limit=elide_above, use_name_loc_as_prefix=True
        )
    )
