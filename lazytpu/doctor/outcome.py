"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass

WORKS = "works"
MISSING = "missing"
"lazytpu or XLA does not support it on this device and raised NotImplementedError."
BROKEN = "broken"
"Its result is wrong, or it raised another error."
CRASHED = "crashed"
"Its process died."
HUNG = "hung"
"It took longer than its limit and was killed."
LEFT_OUT = "not run"

BAD = (BROKEN, CRASHED, HUNG)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of the check `name` of a `family`.

    `status` is one of the constants above. `detail` describes the observation or the error, and `said` is the output of
    its process to the standard streams meanwhile.
    """

    family: str
    name: str
    proves: str
    status: str
    detail: str
    seconds: float = 0.0
    said: str = ""
