"""The user's source line of a record: determined once per trie state, on a miss (R10)."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import CodeType, FrameType

import torch

from lazytpu.frontend.module_paths import module_path
from lazytpu.frontend.torch_private import BACKWARD, current_node, sequence_number

_OURS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (torch.__file__, os.path.join(os.path.dirname(__file__), os.pardir, "__init__.py"))
)
_OURS = tuple(os.path.abspath(p) + os.sep for p in _OURS)
# Modules whose decorators and context managers forward a call: torch wraps deprecated functions in one of them.
_PASSING_ON = ("contextlib.py", "functools.py", "typing_extensions.py", "warnings.py", "_py_warnings.py")
_FORWARD_LIMIT = 100_000  # lines kept for backward records; the oldest are evicted first


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in the user's program; `backward` if it is the line of the forward op of a backward record.

    `module` is the path of the module that recorded the op there. Lines are equal whatever it is: traces of several
    modules share their states and programs.
    """

    file: str
    line: int
    function: str
    backward: bool = False
    module: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (" (backward)" if self.backward else "")


_added: list[str] = []
"""Folders of further libraries."""


def add_library(file: str) -> None:
    """Count the files in the folder of `file`, the module of a library, as code of no user."""
    _added.append(os.path.dirname(os.path.abspath(file)) + os.sep)
    is_library.cache_clear()


@cache
def is_library(filename: str) -> bool:
    """Return whether a file belongs to torch, to lazytpu, to a library that was added, or to no user."""
    return filename.startswith(("<", *_OURS, *_added)) or os.path.basename(filename) in _PASSING_ON


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_frame() -> FrameType | None:
    """Return the innermost frame outside torch and lazytpu, or None."""
    return _user_frame(sys._getframe(1))


def warn_user(message: str) -> None:
    """Give a UserWarning at the user's line, as torch's C++ code does."""
    frame = user_frame()
    if frame is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        module = frame.f_globals.get("__name__")
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def user_place(frame: FrameType | None) -> str:
    """Return the place in the user's program that called `frame`; empty if there is none."""
    frame = _user_frame(frame)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class CallSite:
    """A place in the user's program, cheap enough for every upload: it costs 0.3 us, a SourceLine 1.2."""

    __slots__ = ("code", "line")

    def __init__(self, code: CodeType, line: int) -> None:
        self.code = code
        self.line = line

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"

    def text(self) -> str:
        """Return the source code there; empty if the file cannot be read."""
        return linecache.getline(self.code.co_filename, self.line).strip()


def call_site() -> CallSite | None:
    """Return the innermost frame outside torch and lazytpu."""
    frame = _user_frame(sys._getframe(1))
    return None if frame is None else CallSite(frame.f_code, frame.f_lineno)


_forward: dict[int, SourceLine] = {}


class _Replayed(threading.local):
    line: SourceLine | None = None


_replayed = _Replayed()


@contextmanager
def replaying() -> Iterator[_Replayed]:
    """Context: records of this thread have the `line` of the yielded object, or the line of their frames if it is None.

    Ops of a captured graph have their own lines, unrelated to the frames that run it.
    """
    before = _replayed.line
    try:
        yield _replayed
    finally:
        _replayed.line = before


def user_line() -> SourceLine | None:
    """Return the innermost frame outside torch and lazytpu; in backward, the line of the forward op."""
    if _replayed.line is not None:
        return _replayed.line
    node = current_node()
    if node is not None:
        line = _forward.get(node._sequence_nr())
        if line is not None:
            return replace(line, backward=True)
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def recorded_line() -> SourceLine | None:
    """Return `user_line()` with the path of the module that runs.

    In backward it is the module of the forward op, unless the backward pass calls a module: a checkpoint recomputes its
    ops at their own lines.
    """
    line = user_line()
    replayed = _replayed.line is not None
    if line is None or (line.module and replayed) or not (module := module_path()):
        return line
    frame = _user_frame(sys._getframe(1)) if line.backward and not replayed else None
    if frame is None:
        return replace(line, module=module)
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, line.backward, module)


def backward_line() -> SourceLine | None:
    """Return the line that called the backward pass for which this autograd thread works; None when several threads run
    one.

    The hooks of a native reducer have no Python frames.
    """
    waiting = [frame for frame in map(_backward_frame, sys._current_frames().values()) if frame is not None]
    frame = _user_frame(waiting[0]) if len(waiting) == 1 else None
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _backward_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame that runs a backward pass, if a thread waits for one in `frame`."""
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code is BACKWARD:
            return frame
        frame = frame.f_back
    return None


def has_forward(number: int) -> bool:
    """Return whether the line of the forward op of the node with this sequence number is known."""
    return number in _forward


def note_forward(line: SourceLine, number: int | None = None) -> None:
    """Store `line` as the line of the backward ops of a node, by its sequence number; by default that of the current
    op, in the kernel of an op that autograd differentiates."""
    if len(_forward) >= _FORWARD_LIMIT:
        for old in list(_forward)[: _FORWARD_LIMIT // 2]:
            del _forward[old]
    # Autograd created the current op's node just before calling the kernel.
    _forward[sequence_number() - 1 if number is None else number] = line
