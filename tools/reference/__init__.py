"""Generates docs/ir.md, the reference of the dialect, from the definitions in lazytpu/ir: `make ir`."""
