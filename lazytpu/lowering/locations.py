"""Source lines: converts xDSL locations to MLIR locations, which XLA uses in messages and profiles."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute

from lazytpu.runtime.xla.mlir import ir


def to_mlir(location: Attribute) -> ir.Location:
    """The same location in MLIR; unknown for any other kind."""
    match location:
        case FileLineColLoc():
            return ir.Location.file(location.filename.data, location.line.data, location.column.data)
        case NameLoc():
            return ir.Location.name(location.desc.data, childLoc=to_mlir(location.location))
        case FusedLoc(locations=ArrayAttr() as parts):
            return ir.Location.fused([to_mlir(part) for part in parts])
        case CallSiteLoc():
            return ir.Location.callsite(to_mlir(location.callee), [to_mlir(location.caller)])
        case _:
            return ir.Location.unknown()
