"""What the frontend asks of the engine: one protocol, which the engine implements and `lazytpu.wiring` hands over.

Neither room imports the other. Both import this module, so each method is declared once, and an engine that lacks one
cannot be made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch._ops import OpOverload

from lazytpu.trace.constants import ConstantReads
from lazytpu.trace.recorder import Trace
from lazytpu.trace.subtraces import Subtrace
from lazytpu.trace.trie import CutPlan, Grow, Record, State
from lazytpu.trace.value import Layout

Ranges: TypeAlias = "Mapping[int, tuple[int, int | None]]"
"""Dims that will vary: the least and the greatest size of each, None for no limit."""


@dataclass(frozen=True)
class OpFacts:
    """What recording needs to know of an op's meaning.

    `numbers` are the arguments whose numbers are passed at run time, `specialized` those whose numbers are part of the
    program until they are seen to vary. `random` says whether the op draws random numbers, `uses_precision` whether
    torch's float32 matmul precision affects it.
    """

    numbers: frozenset[str]
    random: bool
    uses_precision: bool
    specialized: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeviceProperties:
    """The device as XLA describes it: `name` ("TPU v5 lite"), `platform` ("tpu", "gpu" or "cpu"), and `total_memory`
    in bytes (the host's memory on the platform "cpu")."""

    name: str
    platform: str
    total_memory: int
    multi_processor_count: int = 1


class DevicePort(Protocol):
    """What `torch.tpu` reports about the device."""

    @abstractmethod
    def properties(self) -> DeviceProperties:
        """The device as XLA describes it."""

    @abstractmethod
    def platform(self) -> str:
        """Where programs run: "tpu", "gpu" or "cpu"."""

    @abstractmethod
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes that tensors of the device may have."""

    @abstractmethod
    def busy_percent(self) -> int:
        """Percent of the time since the last call in which programs ran."""

    @abstractmethod
    def memory_fraction(self) -> float:
        """The fraction of the device's memory that this process may use."""

    @abstractmethod
    def allow_memory(self, fraction: float) -> None:
        """Limit this process to that fraction of the device's memory."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes of the device's memory that are free now."""

    @abstractmethod
    def live_bytes(self) -> int:
        """Bytes of device memory that values hold now."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """The most bytes held since the start or `reset_peak`, temporaries of programs included."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Restart `peak_bytes` from what is held now."""

    @abstractmethod
    def times_exhausted(self) -> int:
        """How often the device ran out of memory since the start or `reset_exhausted`."""

    @abstractmethod
    def reset_exhausted(self) -> None:
        """Restart `times_exhausted` from 0."""

    @abstractmethod
    def summary(self) -> str:
        """A table of what is alive."""


class Inference(Protocol):
    """What the engine asks of the frontend where it makes states of the trie by itself."""

    @abstractmethod
    def layout(self, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
        """The layout of a value. Raises NotImplementedError or RuntimeError where the device cannot have it."""

    @abstractmethod
    def agrees(self, records: Sequence[Record], numbers: Iterable[int]) -> bool:
        """Whether torch infers the layouts of the results that the records of a trace with these numbers have."""

    @abstractmethod
    def derived(self, record: Record, layouts: Mapping[int, Layout]) -> Sequence[Layout | None]:
        """The layouts of the new results of a record, by those of the slots that it reads, where sizes are SymInts.
        Raises what torch does where it needs the number of one."""

    @abstractmethod
    def at(self, record: Record) -> bool:
        """Whether the user's program is now at the line of a record. One of a backward pass may be at any."""


AtCounts = Callable[[Mapping[str, int]], tuple[Subtrace, Sequence[Record]]]
"""A function where some counts are fixed and the others as great as they can be, and its records, with the form of each
number that depends on the others. Raises the RuntimeError or IndexError of an op that refuses such a count, and
ValueError where it is no such function."""


class EnginePort(Protocol):
    """What the frontend calls. A recorder takes the methods about traces as callbacks."""

    @property
    @abstractmethod
    def answers(self) -> ConstantReads:
        """The constants that host reads have asked for."""

    @property
    @abstractmethod
    def device(self) -> DevicePort:
        """The device that programs run on."""

    # -- what ops mean

    @abstractmethod
    def facts(self, op: OpOverload) -> OpFacts:
        """Facts about `op`. Raises NotImplementedError, naming the op and how to add it, when no rule expresses it."""

    @abstractmethod
    def rules(self) -> Collection[str]:
        """Names of the ops that have a rule of their own."""

    @abstractmethod
    def counted(self, bounds: Mapping[str, int], at: AtCounts) -> str:
        """The digest of a subtrace with sizes that it counts on the device, for all counts up to these `bounds`. Its
        last results are the counts. Raises ValueError, with the reason, where no such subtrace exists."""

    @abstractmethod
    def untunable(self) -> str | None:
        """Why passes cannot be chosen for a program by its cost on a TPU; None if they can."""

    @abstractmethod
    def remembered(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """The result of `make`, a list that depends only on lazytpu's source and on torch: read from disk when an
        earlier process computed it."""

    @abstractmethod
    def functional(self, op: OpOverload) -> OpOverload | None:
        """The overload that computes what the mutating `op` writes, if there is one."""

    @abstractmethod
    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raises NotImplementedError, naming the supported dtypes, for a dtype that no program can hold."""

    @abstractmethod
    def check_size(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raises RuntimeError, with the CPU's message, or torch.OutOfMemoryError for a tensor or view that is far too
        large for the device."""

    @abstractmethod
    def check_import(self, state: State) -> None:
        """Raises RuntimeError, or torch.OutOfMemoryError, when the last record of the trace at `state` cannot be
        imported. Found at a cut, the error would surface in an unrelated read."""

    # -- traces

    @abstractmethod
    def text_of(self, records: Sequence[Record]) -> str:
        """A trace as text: equal for equal traces, in every process, and for those alone. Raises TypeError when an
        argument has no text."""

    @abstractmethod
    def plan_of(self, state: State) -> CutPlan:
        """The plan of a trace that is at `state`, kept while it is in use."""

    @abstractmethod
    def grows(self, state: State) -> Sequence[Grow]:
        """What makes states behind one without a key, where what an earlier read left of a trace ends."""

    @abstractmethod
    def cut_trace(self, trace: Trace) -> None:
        """Run the program that computes what is alive of a trace, compiling it if there is none.

        Raises Interrupted when an interrupt came before it ran: nothing has happened then, and the trace may be cut
        again.
        """

    @abstractmethod
    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """Give up a trace that depends on a program that failed with `error`: reads of its results raise the error."""

    @abstractmethod
    def launched(self) -> int:
        """How many programs have been launched."""

    @abstractmethod
    def wait(self, since: int = 0) -> None:
        """Wait until everything launched so far is done. Raises the first unreported failure of the launches after the
        first `since`."""

    @abstractmethod
    def idle(self) -> bool:
        """Whether everything launched so far is done."""

    # -- data

    @abstractmethod
    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None, ranges: Ranges | None = None) -> Any:
        """A device buffer for a value of `layout`: a snapshot of the elements of `flat` (1-D, on the CPU, in memory
        order). `line` is the user's line that asked for it; the dims in `ranges` will vary."""

    @abstractmethod
    def mark(self, buffer: Any, layout: Layout, ranges: Ranges) -> Any:
        """A device buffer in place of one of a value of `layout` whose dims in `ranges` will vary."""

    @abstractmethod
    def download(self, buffer: Any, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D CPU tensor with a buffer's elements in memory order, owned by the caller. Raises what failed on the
        device."""

    @abstractmethod
    def number(self, buffer: Any, dtype: torch.dtype, index: int) -> Any:
        """One of these elements, as a Python number. Raises what failed on the device."""

    @abstractmethod
    def share(self, buffer: Any) -> Any:
        """A jax array of a buffer's memory, which is not donated while the array lives. Raises what failed on the
        device."""

    @abstractmethod
    def adopt(self, array: Any, line: Any = None) -> Any:
        """A device buffer of the memory of a jax array on this device; it is never donated."""

    @abstractmethod
    def fell_back(self) -> None:
        """Count an op that ran on the CPU."""
