"""Invalid ops of every family, and the verifier's message for each."""

from __future__ import annotations

from tests.ir.refusals import attention, calls, collectives, elementwise, indexing, reductions, shape
from tests.ir.refusals.control import REFUSED_REGIONS
from tests.ir.refusals.making import Properties, Refusal, make

__all__ = ["REFUSED", "REFUSED_REGIONS", "Properties", "make"]

_FAMILIES = (elementwise, shape, reductions, indexing, attention, calls, collectives)
REFUSED: list[Refusal] = [refusal for family in _FAMILIES for refusal in family.REFUSED]
