"""The rules of `pad-sizes`, one for each op of the dialect, by the families of `lazytpu/ir/`."""

from __future__ import annotations

from collections.abc import Mapping

from lazytpu.ir.base import TensorOp
from lazytpu.passes.padding.rules import (
    attention,
    constants,
    contractions,
    control,
    indexing,
    kernels,
    pointwise,
    random,
    reductions,
    refused,
    shape,
    slices,
    sorting,
    templates,
)
from lazytpu.passes.padding.walk import Rule

_FAMILIES = (
    constants, pointwise, shape, slices, reductions, contractions, indexing, random, sorting, attention, control,
    templates, kernels,
)  # fmt: skip

REFUSED: Mapping[type[TensorOp], Rule] = refused.RULES
"""Rules of ops that are refused whenever one of their sizes is annotated."""
RULES: Mapping[type[TensorOp], Rule] = {kind: rule for family in _FAMILIES for kind, rule in family.RULES.items()}
"""The rules of all other ops."""
