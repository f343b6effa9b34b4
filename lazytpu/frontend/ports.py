"""What the frontend needs of the rooms below and above it, given to it at activation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from lazytpu.trace.constants import Answers
from lazytpu.trace.recorder import Trace
from lazytpu.trace.trie import CutPlan, State
from lazytpu.trace.value import Layout


@dataclass(frozen=True)
class OpFacts:
    """What recording needs to know of an op's meaning: the arguments whose numbers vary at run time, whether it draws
    random numbers, whether torch's float32 matmul precision decides about it, and the arguments whose numbers are part
    of the program until they are seen to vary."""

    numbers: frozenset[str]
    random: bool
    uses_precision: bool
    promotable: frozenset[str] = frozenset()


class Engine(Protocol):
    """The part of the engine that the frontend calls."""

    @property
    def answers(self) -> Answers:
        """The constants that host reads asked for."""
        ...

    def facts(self, op: OpOverload) -> OpFacts:
        """Facts of `op`; raises NotImplementedError naming it when nothing expresses it."""
        ...

    def rules(self) -> Collection[str]:
        """Names of the ops that have a rule of their own."""
        ...

    def remembered(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """What `make` gives, a list that depends on lazytpu's source and on torch alone: from disk, when an earlier
        process made it."""
        ...

    def functional(self, op: OpOverload) -> OpOverload | None:
        """The overload that computes what a mutating op writes."""
        ...

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raises NotImplementedError for a dtype whose tensors no program can hold."""
        ...

    def check_size(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raises RuntimeError for a tensor that is far too large for the device, whether it is in memory or a view."""
        ...

    def check_import(self, state: State) -> None:
        """Raises RuntimeError when no program could be made of the last record of a trace that is at `state`."""
        ...

    def cut_trace(self, trace: Trace) -> None:
        """Give the trace's live values their buffers."""
        ...

    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """A trace cannot run: let reads of what it would have made raise `error`."""
        ...

    def plan_of(self, state: State) -> CutPlan:
        """The plan of a trace that is at `state`, kept as long as it is used."""
        ...

    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None) -> Any:
        """A device buffer for a value of `layout`: a snapshot of the elements of `flat` (1-D, on the CPU, in memory
        order). `line` is the user's line that asked for it."""
        ...

    def download(self, buffer: Any, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D CPU tensor with a buffer's elements in memory order, owned by the caller. Raises what failed on the
        device."""
        ...

    def fell_back(self) -> None:
        """Count an op that was run on the CPU."""
        ...

    def launched(self) -> int:
        """How many runs there were so far."""
        ...

    def wait(self, since: int = 0) -> None:
        """Wait until everything launched so far is done. Raises what failed in runs after the first `since`, and nobody
        was told of."""
        ...

    def idle(self) -> bool:
        """Whether everything launched so far is done."""
        ...


_engine: Engine | None = None


def install(engine: Engine) -> None:
    """Make `engine` the one the frontend uses."""
    global _engine
    _engine = engine


def engine() -> Engine:
    """The installed engine."""
    assert _engine is not None, "lazytpu is not activated"
    return _engine
