"""The known gaps, gaps.toml: each with its owner and its reason."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("gaps.toml")


@dataclass(frozen=True)
class Gap:
    """Ops (a regular expression) at some dtypes and checks (none: all), with the reason."""

    ops: str
    whose: str
    reason: str
    dtypes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    raises: str = ""

    def __post_init__(self) -> None:
        if self.whose not in ("torch", "xla", "lazytpu"):
            raise ValueError(f"{FILE.name}: whose is {self.whose!r}; allowed: torch, xla, lazytpu")
        object.__setattr__(self, "dtypes", tuple(self.dtypes))
        object.__setattr__(self, "checks", tuple(self.checks))

    def covers(self, op: str, dtype: str, check: str) -> bool:
        matches = bool(re.fullmatch(self.ops, op)) and (not self.dtypes or dtype in self.dtypes)
        return matches and (not self.checks or check in self.checks)


def load(path: Path = FILE) -> tuple[Gap, ...]:
    """All gaps, in the order of the file."""
    return tuple(Gap(**gap) for gap in tomllib.loads(path.read_text()).get("gap", []))


def reason(gaps: tuple[Gap, ...], op: str, dtype: str, check: str) -> Gap | None:
    """The first gap that covers a failure."""
    return next((gap for gap in gaps if gap.covers(op, dtype, check)), None)
