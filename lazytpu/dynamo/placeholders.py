"""In place of what the ops of a graph see when they run: a recorder, tensors and numbers without values."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from lazytpu.frontend import torch_private as private
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Value

_READS = "it reads a value of the device"


class NotOneRecord(Exception):
    """The graph cannot be one record, for the reason given; its ops are recorded one by one."""


class NewConstants(Exception):
    """The graph has tensors of the device as attributes: they become inputs, since they may be written."""

    def __init__(self, constants: dict[str, torch.Tensor]):
        super().__init__("constants of a graph")
        self.constants = constants


class Placeholder:
    """In place of the device memory of an input."""

    __slots__ = ("error", "host", "pins")

    def __init__(self) -> None:
        self.pins = 0
        self.error = self.host = None

    def __getattr__(self, name: str) -> NoReturn:
        raise NotOneRecord(_READS)


class CaptureRecorder(Recorder):
    """Records a graph. Nothing in it can be cut, because nothing runs. `uploads` are the values on the device that are
    no arguments, and `given` maps the index of a number to the argument that it is."""

    __slots__ = ("given", "uploads")

    def __init__(self, outer: Recorder):
        root = State(None, None, None, 0, 0, 0)
        super().__init__(root, _refuse, outer.plan_of)
        self.own_mode = "lazy"
        self._set_mode("lazy")  # only what the size limit requires cuts there
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
    """In place of argument `index`, a 0-d tensor of the CPU: a run-time number. Its value is that of the call that is
    captured, and of no other."""

    __torch_function__: Any = private.no_torch_function
    index: int
    recorder: CaptureRecorder

    @staticmethod
    def of(tensor: torch.Tensor, index: int, recorder: CaptureRecorder) -> Given:
        """In place of `tensor`."""
        given = tensor.detach().as_subclass(Given)
        given.index, given.recorder = index, recorder
        return given

    def item(self) -> Any:
        """The value, which kernels append to the recorder's numbers."""
        self.recorder.given[len(self.recorder.numbers)] = self.index
        return super().item()
