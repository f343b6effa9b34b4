"""The text of StableHLO modules, for dumps."""

from __future__ import annotations

from lazytpu.runtime.xla.mlir import ir


def stablehlo_text(module: ir.Module, *, locations: bool = False, elide_above: int | None = None) -> str:
    """The module as MLIR text. Parameters keep the names of the program (`%layers.0.weight`).

    With `locations` the text includes source lines. Constants of more than `elide_above` elements are elided, for
    people to read; by default the text is complete, and can be parsed by any StableHLO tool.
    """
    return str(
        module.operation.get_asm(
            enable_debug_info=locations, large_elements_limit=elide_above, use_name_loc_as_prefix=True
        )
    )
