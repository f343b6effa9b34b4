"""Stand-ins without values, on which the ops of a graph run during capture: a recorder, device memory, and numbers."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from lazytpu.frontend import torch_private as private
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Value

_READS = "it reads a value of the device"


class NotOneRecord(Exception):
    """Raised with the reason why a graph cannot be one record; its ops are then recorded one by one."""


class NewConstants(Exception):
    """Raised for a graph that has device tensors as attributes. They become inputs, since they may be written."""

    def __init__(self, constants: dict[str, torch.Tensor]):
        super().__init__("constants of a graph")
        self.constants = constants


class Placeholder:
    """A stand-in for the device memory of an input."""

    __slots__ = ("error", "host", "pins")
    constant = False

    def __init__(self) -> None:
        self.pins = 0
        self.error = self.host = None

    def __getattr__(self, name: str) -> NoReturn:
        raise NotOneRecord(_READS)


class CaptureRecorder(Recorder):
    """The recorder of a capture, in which no cut is possible, because nothing runs.

    `uploads` are the values on the device that are no arguments. `given` maps the index of a number to the index of its
    argument.
    """

    __slots__ = ("given", "uploads")

    def __init__(self, outer: Recorder):
        root = State(None, None, None, 0, 0, 0)
        super().__init__(root, _refuse, outer.plan_of)
        self.own_mode = "lazy"
        self._set_mode("lazy")  # only the size limit requires cuts in this mode
        self.platform = outer.platform
        self.uploads: list[Value] = []
        self.given: dict[int, int] = {}

    def admit(self, value: Value) -> Any:
        token = super().admit(value)
        if not isinstance(token, int) and not (value.buffer is EMPTY or isinstance(value.buffer, Placeholder)):
            self.uploads.append(value)
        return token

    def rollback(self) -> None:
        super().rollback()
        self.given = {number: argument for number, argument in self.given.items() if number < len(self.numbers)}

    def cut(self, cause: str | None = None, place: Any = None) -> None:
        if self.state is not self.root:
            raise NotOneRecord("it is cut inside" if cause is None else f"it is cut inside: {cause}")

    def read(self, value: Value, place: Any = None) -> None:
        raise NotOneRecord(_READS)


def _refuse(trace: Any) -> NoReturn:
    raise NotOneRecord("it is cut inside")


class Given(torch.Tensor):
    """A stand-in for argument `index`, a 0-d CPU tensor that becomes a run-time number. Its value belongs to the
    captured call only."""

    __torch_function__: Any = private.no_torch_function
    index: int
    recorder: CaptureRecorder

    @staticmethod
    def of(tensor: torch.Tensor, index: int, recorder: CaptureRecorder) -> Given:
        """Return the stand-in for `tensor`."""
        number = tensor.detach().as_subclass(Given)
        number.index, number.recorder = index, recorder
        return number

    def item(self) -> Any:
        """Return the value, and note that the kernel appends it to the recorder's numbers."""
        self.recorder.given[len(self.recorder.numbers)] = self.index
        return super().item()
