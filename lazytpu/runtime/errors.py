"""Errors of the device: exceptions with the program, XLA's message, and the state of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class PlatformError(RuntimeError):
    """The requested platform is not available on this machine."""


class CompileError(RuntimeError):
    """XLA refused a module. Nothing has run, and no array has changed.

    Attributes: `program` (its name), `reason` (XLA's whole message).
    """

    def __init__(self, program: str, reason: str) -> None:
        self.program = program
        self.reason = reason
        super().__init__(f"XLA could not compile {program}: {reason}")


class Unsupported(CompileError, NotImplementedError):
    """XLA refused a module because its client lacks what the module needs: a function, or an op on this platform."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, f"{reason}. This client of XLA lacks it: compute it on the CPU, from x.cpu()")


class LoadError(RuntimeError):
    """XLA refused the bytes of a compiled program."""


class RunError(RuntimeError):
    """A program failed while it ran, or was refused before it could run.

    Attributes: `program` (its name), `reason` (XLA's whole message), `lost`. `lost` lists the positions of the
    arguments whose donated memory is lost; the other arguments are unchanged. It is None when the failure was seen
    later, at a result.
    """

    def __init__(self, program: str, reason: str, lost: Sequence[int] | None = ()) -> None:
        self.program = program
        self.reason = reason
        self.lost = lost if lost is None else tuple(lost)
        suffix = {None: "", (): "; its arguments are unchanged"}.get(
            self.lost, f"; {len(self.lost or ())} donated arguments are lost"
        )
        super().__init__(f"{program} failed: {reason}{suffix}")


class OutOfMemory(RunError):
    """A run needed more memory than the device has."""


def is_full(reason: str) -> bool:
    """Whether XLA's message says that the memory of the device is full. A full memory of a core (vmem or smem of a TPU)
    does not count: a single kernel needs too much, and a smaller program would not help."""
    text = reason.lower()
    of_core = ("vmem" in text or "smem" in text) and "hbm" not in text
    return "resource_exhausted" in text and not of_core


def compile_error(program: str, reason: str) -> CompileError:
    """Return the exception for a refused module: `Unsupported` when XLA says that it lacks a function or op. A client
    behind the PJRT C API has only the functions of its own library, not those that jaxlib registers for the CPU, such
    as LAPACK's."""
    lacks = reason.startswith("UNIMPLEMENTED") or "No FFI handler registered" in reason
    return (Unsupported if lacks else CompileError)(program, reason)


# Functions that may add a cause to XLA's reason, for example that a process has died (`lazytpu.distributed.watch`).
EXPLANATIONS: list[Callable[[str], str]] = []


def run_error(program: str, reason: str, lost: Sequence[int] | None = ()) -> RunError:
    """Return the exception for a failed run: `OutOfMemory` when XLA says that the memory is full, else `RunError`."""
    kind = OutOfMemory if is_full(reason) else RunError
    for explain in EXPLANATIONS:
        reason = explain(reason)
    return kind(program, reason, lost)
