"""Waits for the device, by the user's line (`lazytpu.waits()`).

A host thread waits for the device where it reads a value (`storage/copies.py`), shares one with JAX, or synchronizes.
Each of these does so in the context `Waiting`, which counts the wait and carries out `torch.tpu.set_sync_debug_mode`.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from lazytpu.frontend import activation, names, observed
from lazytpu.frontend.lines import user_frame, warn_user
from lazytpu.timeline import TIMELINE, WAIT
from lazytpu.trace.cuts import READ, Cut
from lazytpu.trace.value import Value

LISTED = 256
"""Number of places that are remembered, most recently used."""
DEFAULT, WARN, ERROR = range(3)
"""The modes of `torch.tpu.set_sync_debug_mode`."""
DEBUG_MODE = DEFAULT


@dataclass(slots=True)
class Wait:
    """The waits of one expression of the user's program."""

    place: str
    """Its line, such as train.py:41; empty if no frame of the user's program was on the stack."""
    text: str
    """Its source code; empty if that cannot be read."""
    reason: str
    """Why it waits, where that is not plain from its code."""
    count: int = 0
    """Number of waits."""
    seconds: float = 0.0
    """Time that the thread waited for the device, in total. It does not include the time to compile programs."""
    longest: float = 0.0
    """The longest wait."""
    cuts: Counter[tuple[bool, int, int]] = field(default_factory=Counter[tuple[bool, int, int]])
    """Number of its cuts by (whether it split a training step, ops that ran, ops that stayed pending)."""

    @property
    def splits(self) -> int:
        """Number of waits that split a training step: its ops ran before its optimizer's step was recorded."""
        return sum(count for (splits, *_), count in self.cuts.items() if splits)

    def note(self, seconds: float, cut: Cut | None) -> None:
        """Count one wait, and the cut that it caused."""
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        if cut is not None and cut.cause == READ:
            self.cuts[cut.splits, cut.ran, cut.left] += 1
            if len(self.cuts) > LISTED:
                del self.cuts[min(self.cuts, key=self.cuts.__getitem__)]

    def __str__(self) -> str:
        where = self.place + (f", `{self.text}`" if self.text else "")
        count = "once" if self.count == 1 else f"{self.count:,} times"
        waited = f"waited {_time(self.seconds)}" + (f", at most {_time(self.longest)}" if self.count > 1 else "")
        lines = [f"{where or 'no line of the program'}: {count}, {waited}"]
        for (splits, ran, left), times in self.cuts.most_common(2):
            how = "split a training step" if splits else "cut"
            after = f"{ran:,} {'op' if ran == 1 else 'ops'} ran" + (f", {left:,} stayed pending" if left else "")
            lines.append(f"    {how} {'once' if times == 1 else f'{times:,} times'}: {after}")
        if self.splits:
            lines.append("    read it after optimizer.step(), so that the step is one program")
            lines.append("    (after it, or in an evaluation: compute it under torch.no_grad(), to keep nothing)")
        if self.reason:
            lines.append(f"    because: {self.reason}")
        return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


class Waits(Sequence[Wait]):
    """All waits, the longest in total first; `print(lazytpu.waits())` shows them."""

    def __init__(self, waits: Sequence[Wait]) -> None:
        self.waits = sorted(waits, key=lambda wait: (-wait.seconds, -wait.count))

    def __getitem__(self, index: int) -> Wait:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.waits[index]

    def __len__(self) -> int:
        return len(self.waits)

    def __iter__(self) -> Iterator[Wait]:
        return iter(self.waits)

    def __str__(self) -> str:
        if not self.waits:
            return "no waits for the device"
        count, seconds = sum(wait.count for wait in self.waits), sum(wait.seconds for wait in self.waits)
        return "\n".join([f"waits for the device: {count:,}, {_time(seconds)} in total", *map(str, self.waits)])

    __repr__ = __str__


Key = tuple[CodeType | None, int, str]
"""An expression of the program: its code, the offset in it, and the reason if the program does not read there."""
_waits: OrderedDict[Key, Wait] = OrderedDict()
_lock = threading.Lock()


def waits() -> Waits:
    """Return the waits since the start or `forget`."""
    with _lock:
        return Waits(list(_waits.values()))


def forget() -> None:
    """Forget all waits."""
    with _lock:
        _waits.clear()


class _Open(threading.local):
    is_open = False


_open = _Open()


class Waiting:
    """Context in which the calling thread waits for the device, in order to read `value` if there is one.

    A wait within another one belongs to it. With `asked`, the program asks for the wait by name, so that
    `set_sync_debug_mode` does not report it. `reason` is why it waits, if no code of the program reads. `cut` is the
    cut that the wait causes, to be set in the context.
    """

    __slots__ = ("asked", "before", "cut", "inner", "reason", "shown", "value")

    def __init__(self, value: Value | None = None, *, asked: bool = False, reason: str = "") -> None:
        self.value = value
        self.asked = asked
        self.reason = reason
        self.cut: Cut | None = None
        self.shown: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Waiting:
        self.inner = _open.is_open
        if not self.inner:
            if DEBUG_MODE and not self.asked:
                _report()
            _open.is_open = True
            self.before = activation.engine().waited()
            if TIMELINE.collecting is not None:
                self.shown = TIMELINE.host_range(WAIT + _text(user_frame()))
                self.shown.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        if self.inner:
            return
        _open.is_open = False
        if self.shown is not None:
            self.shown.__exit__(None, None, None)
        frame = user_frame()
        key = (None, 0, self.reason) if frame is None else (frame.f_code, frame.f_lasti, self.reason)
        wait = _waits.get(key) or _begun(key, frame, self.value)
        with _lock:
            _waits[key] = wait  # another thread may have dropped it since
            _waits.move_to_end(key)
            wait.note(activation.engine().waited() - self.before, self.cut)


def unasked(reason: str) -> Waiting:
    """Return the context of a wait that no code of the program asks for."""
    return Waiting(asked=True, reason=reason)


def _begun(key: Key, frame: FrameType | None, value: Value | None) -> Wait:
    """Add the entry of a place that waits for the first time."""
    place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    wait = Wait(place, _text(frame), key[2] or _reason(frame, value))
    with _lock:
        wait = _waits.setdefault(key, wait)
        if len(_waits) > LISTED:
            _waits.popitem(last=False)
    return wait


def _report() -> None:
    """Warn of a wait, or refuse it, at the user's line."""
    text = _text(user_frame())
    message = "called a synchronizing TPU operation" + (f": `{text}` waits for the device" if text else "")
    if DEBUG_MODE == ERROR:
        raise RuntimeError(message)
    warn_user(message)


def _text(frame: FrameType | None) -> str:
    """Return the source code of the expression that a frame evaluates; of its line if Python does not know its columns,
    and "" if the file cannot be read."""
    if frame is None:
        return ""
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals)
    positions = list(code.co_positions())[frame.f_lasti // 2]
    first, last, start, end = positions
    if first == last == frame.f_lineno and start is not None and end is not None:
        return line.encode()[start:end].decode(errors="replace")
    return line.strip()


# Part of a path -> why the code of torch there waits.
_LIBRARY = {
    "/_tensor_str.py": "printing a tensor reads its elements",
    "/amp/grad_scaler.py": "the gradient scaler reads whether a gradient is infinite, and skips the step then",
    "/nn/utils/clip_grad.py": "error_if_nonfinite=True reads the norm of the gradients",
    "/distributions/": "a distribution checks the values of its arguments; validate_args=False leaves that out",
    "/serialization.py": "saving a tensor reads its elements",
}
_OF_COUNTS = ("/frontend/ops/data_dependent.py", "/frontend/ops/counting.py")
_NAMES = {"index": "x[mask]", "index_put_": "x[mask] = y", "index_put": "x[mask] = y"}
_COMPARED = "equal"


def _reason(frame: FrameType | None, value: Value | None) -> str:
    """Return why the code of a library, called by the user's `frame`, waits; "" if that is not known."""
    inner, called = sys._getframe(1), list[FrameType]()
    while inner is not None and inner is not frame:
        called.append(inner)
        inner = inner.f_back
    for caller in called:
        path = caller.f_code.co_filename.replace("\\", "/")
        if "/torch/optim/" in path:
            return _state(value)
        reason = next((reason for part, reason in _LIBRARY.items() if "/torch/" in path and part in path), None)
        if reason is not None:
            return reason
    for caller in reversed(called):
        name = caller.f_code.co_name
        if caller.f_code.co_filename.replace("\\", "/").endswith(_OF_COUNTS) and name != _COMPARED:
            return f"the sizes of `{_NAMES.get(name, name)}` depend on values"
    return ""


def _state(value: Value | None) -> str:
    """Return why an optimizer reads `value`: which entry of its state that is, and how to keep it on the host."""
    for optimizer in names.optimizers():
        for _, state in observed.states(optimizer):
            for key, tensor in state:
                if any(inside is value for _, inside in names.values_of(tensor)):
                    kind = observed.class_name(optimizer)[1].rpartition(".")[2]
                    return (
                        f"`{kind}.step()` reads state[{key!r}], which a program of the device computed; keep it on the "
                        "CPU, as a new optimizer does, or pass capturable=True or fused=True"
                    )
    return "the optimizer reads a value of the device"
