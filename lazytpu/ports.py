"""Declares the protocol between the frontend and the engine: the engine implements it, and `lazytpu.wiring` connects
them.

Neither room imports the other. Both import this module, so each method is declared once, and an engine that lacks one
cannot be constructed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch._ops import OpOverload

from lazytpu.timeline import Traced
from lazytpu.trace.constants import ConstantReads
from lazytpu.trace.pending import Trace
from lazytpu.trace.subtraces import Subtrace
from lazytpu.trace.trie import CutPlan, Grow, Record, State
from lazytpu.trace.value import Layout

Ranges: TypeAlias = "Mapping[int, tuple[int, int | None]]"
"""Dims whose sizes will vary: the least and the greatest size of each, None for no limit."""


class OpFacts(NamedTuple):
    """The properties of an op that recording needs.

    `numbers` are the arguments whose numbers are passed at run time. `specialized` are the arguments whose numbers are
    part of the program until they vary between steps. `random` says whether the op draws random numbers,
    `uses_precision` whether torch's float32 matmul precision affects it.
    """

    numbers: frozenset[str]
    random: bool
    uses_precision: bool
    specialized: frozenset[str] = frozenset()


class DeviceProperties(NamedTuple):
    """The device: `name` ("TPU v6e", or "TPU v6e (simulated on a CPU)"), `platform` ("tpu", "gpu" or "cpu"), and
    `total_memory` in bytes (the host's memory on the platform "cpu")."""

    name: str
    platform: str
    total_memory: int
    multi_processor_count: int = 1


class Point(Protocol):
    """A point in the device's queue."""

    @property
    def is_reached(self) -> bool:
        """Whether the device has come to the point."""
        ...


class DevicePort(Protocol):
    """The device for `torch.tpu`."""

    @abstractmethod
    def properties(self) -> DeviceProperties:
        """Return the properties of the device."""

    @abstractmethod
    def platform(self) -> str:
        """Return the platform that runs programs: "tpu", "gpu" or "cpu"."""

    @abstractmethod
    def dtypes(self) -> set[torch.dtype]:
        """Return the dtypes that tensors of the device may have."""

    @abstractmethod
    def busy_percent(self) -> int:
        """Return the percentage of the time since the last call in which programs ran."""

    @abstractmethod
    def memory_fraction(self) -> float:
        """Return the fraction of the device's memory that this process may use."""

    @abstractmethod
    def allow_memory(self, fraction: float) -> None:
        """Limit this process to that fraction of the device's memory."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Return the bytes of the device's memory that are free now."""

    @abstractmethod
    def live_bytes(self) -> int:
        """Return the bytes of device memory that values hold now."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """Return the most bytes held since the start or `reset_peak`, including temporaries of programs."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Restart `peak_bytes` from the bytes held now."""

    @abstractmethod
    def times_exhausted(self) -> int:
        """Return how often the device ran out of memory since the start or `reset_exhausted`."""

    @abstractmethod
    def reset_exhausted(self) -> None:
        """Restart `times_exhausted` from 0."""

    @abstractmethod
    def summary(self) -> str:
        """Return a table of the live memory."""

    @abstractmethod
    def begin_trace(self) -> Any:
        """Begin a trace of the device's own, to be passed to `end_trace`; None if it keeps none."""

    @abstractmethod
    def end_trace(self, session: Any) -> Traced | None:
        """End a trace that `begin_trace` returned. Return it; None, with a warning, if there is none."""


class Inference(Protocol):
    """The frontend's services for the engine when it constructs states of the trie by itself."""

    @abstractmethod
    def layout(self, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
        """Return the layout of a value. Raises NotImplementedError or RuntimeError if the device cannot have it."""

    @abstractmethod
    def agrees(self, records: Sequence[Record], numbers: Iterable[int]) -> bool:
        """Whether the records with these numbers have the result layouts that torch infers for their arguments."""

    @abstractmethod
    def derived(self, record: Record, layouts: Mapping[int, Layout]) -> Sequence[Layout | None]:
        """Return the layouts of a record's new results, from the layouts of the slots that it reads; sizes may be
        SymInts. Raises torch's error if it needs the number of a SymInt."""

    @abstractmethod
    def at(self, record: Record) -> bool:
        """Whether the user's program is now at the line of a record. For a record of a backward pass, any line may
        match."""


AtCounts = Callable[[Mapping[str, int]], tuple[Subtrace, Sequence[Record]]]
"""A function where some counts are fixed and the others as great as they can be, and its records, with the form of each
number that depends on the others. Raises the RuntimeError or IndexError of an op that refuses such a count, and
ValueError where it is no such function."""


class EnginePort(Protocol):
    """The engine for the frontend. A recorder takes the methods about traces as callbacks."""

    @property
    @abstractmethod
    def answers(self) -> ConstantReads:
        """The constants that host reads requested."""

    @property
    @abstractmethod
    def device(self) -> DevicePort:
        """The device that runs programs."""

    # -- meaning of ops

    @abstractmethod
    def facts(self, op: OpOverload) -> OpFacts:
        """Return the facts about `op`. Raises NotImplementedError, with the op's name and how to add it, if no rule
        expresses it."""

    @abstractmethod
    def rules(self) -> Collection[str]:
        """Return the names of the ops that have their own rule."""

    @abstractmethod
    def counted(self, bounds: Mapping[str, int], at: AtCounts) -> str:
        """Return the digest of a subtrace with sizes that it counts on the device, for all counts up to `bounds`. Its
        last results are the counts. Raises ValueError, with the reason, if no such subtrace exists."""

    @abstractmethod
    def untunable(self) -> str | None:
        """Return the reason why passes cannot be chosen for a program by its cost on a TPU; None if they can."""

    @abstractmethod
    def remembered(self, name: str, make: Callable[[], list[str]]) -> list[str]:
        """Return the result of `make`, a list that depends only on lazytpu's source and on torch. It is read from disk
        if an earlier process computed it."""

    @abstractmethod
    def functional(self, op: OpOverload) -> OpOverload | None:
        """Return the overload that computes the values that the mutating `op` writes, or None."""

    @abstractmethod
    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise NotImplementedError, with the supported dtypes, for a dtype that no program can hold."""

    @abstractmethod
    def check_size(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise RuntimeError, with the CPU's message, or torch.OutOfMemoryError for a tensor or view that is far too
        large for the device."""

    @abstractmethod
    def check_import(self, state: State) -> None:
        """Raise RuntimeError, or torch.OutOfMemoryError, if the last record of the trace at `state` cannot be imported.
        At a cut, the error would surface in an unrelated read."""

    # -- traces

    @abstractmethod
    def text_of(self, records: Sequence[Record]) -> str:
        """Return a trace as text: traces have equal text if and only if they are equal, in every process. Raises
        TypeError for an argument without a text."""

    @abstractmethod
    def plan_of(self, state: State) -> CutPlan:
        """Return the plan of the trace at `state`; it is kept while it is in use."""

    @abstractmethod
    def grows(self, state: State) -> Sequence[Grow]:
        """Return the constructors of the states after a state without a key, at the end of the part of a trace that an
        earlier read left."""

    @abstractmethod
    def cut_trace(self, trace: Trace) -> None:
        """Run the program that computes the live values of a trace; compile it first if necessary.

        Raises Interrupted if an interrupt came before it ran: nothing has happened then, and the trace may be cut
        again.
        """

    @abstractmethod
    def lose_trace(self, trace: Trace, error: BaseException) -> None:
        """Give up a trace that depends on a program that failed with `error`: reads of its results raise the error."""

    @abstractmethod
    def launched(self) -> int:
        """Return the number of launched programs."""

    @abstractmethod
    def wait(self, since: int = 0) -> None:
        """Wait until all launched programs are done. Raises the first unreported failure among the launches after
        number `since`."""

    @abstractmethod
    def point(self) -> Point:
        """Return the point in the device's queue behind all launched programs. This does not wait."""

    @abstractmethod
    def time_of(self, point: Any) -> float:
        """Wait until the device has come to a point, and return the time (time.perf_counter()) at which it did."""

    @abstractmethod
    def settle_times(self) -> None:
        """Wait until the times of all programs that are done are known to `lazytpu.timeline`."""

    @abstractmethod
    def waited(self) -> float:
        """Return the seconds that the calling thread has waited for programs so far."""

    @abstractmethod
    def idle(self) -> bool:
        """Whether all launched programs are done."""

    # -- data

    @abstractmethod
    def upload(self, flat: torch.Tensor, layout: Layout, line: Any = None, ranges: Ranges | None = None) -> Any:
        """Return a device buffer for a value of `layout`: a snapshot of the elements of `flat` (1-D, on the CPU, in
        memory order). `line` is the user's line of the upload; the dims in `ranges` will vary."""

    @abstractmethod
    def mark(self, buffer: Any, layout: Layout, ranges: Ranges) -> Any:
        """Return a device buffer in place of a value's buffer; the dims in `ranges` of the value will vary."""

    @abstractmethod
    def download(self, buffer: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a 1-D CPU tensor with a buffer's elements in memory order, owned by the caller. Raises the errors of
        the programs that compute them."""

    @abstractmethod
    def number(self, buffer: Any, dtype: torch.dtype, index: int) -> Any:
        """Return one element of a buffer as a Python number. Raises the errors of the programs that compute it."""

    @abstractmethod
    def share(self, buffer: Any) -> Any:
        """Return a jax array that shares a buffer's memory, which is not donated while the array lives. Raises the
        errors of the programs that compute the buffer."""

    @abstractmethod
    def adopt(self, array: Any, line: Any = None) -> Any:
        """Return a device buffer that shares the memory of a jax array on this device; it is never donated."""

    @abstractmethod
    def fell_back(self) -> None:
        """Count an op that ran on the CPU."""
