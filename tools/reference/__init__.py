"""docs/ir.md, the reference of the dialect, made from the definitions in lazytpu/ir: `make ir`."""
