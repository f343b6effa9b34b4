"""What can go wrong at the device, as exceptions that say the program, XLA's own words, and what is left intact."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class PlatformError(RuntimeError):
    """The platform that was asked for is not on this machine."""


class CompileError(RuntimeError):
    """XLA refused a module. Nothing has run: every array is as it was.

    Attributes: `program` (its name), `reason` (XLA's message, whole).
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

    Attributes: `program` (its name), `reason` (XLA's message, whole), `lost` (positions of the arguments whose memory
    had been donated when the run failed; every other argument is as it was; None when the failure was met later, at a
    result).
    """

    def __init__(self, program: str, reason: str, lost: Sequence[int] | None = ()) -> None:
        self.program = program
        self.reason = reason
        self.lost = lost if lost is None else tuple(lost)
        after = {None: "", (): "; its arguments are unchanged"}.get(
            self.lost, f"; {len(self.lost or ())} donated arguments are lost"
        )
        super().__init__(f"{program} failed: {reason}{after}")


class OutOfMemory(RunError):
    """A run needed more memory than the device has."""


def is_full(reason: str) -> bool:
    """Whether XLA's message says that the memory of the device is full. That of a core (vmem, smem, on a TPU) is what a
    single kernel asks too much of, which no smaller program would mend."""
    text = reason.lower()
    of_core = ("vmem" in text or "smem" in text) and "hbm" not in text
    return "resource_exhausted" in text and not of_core


def compile_error(program: str, reason: str) -> CompileError:
    """The exception for a refused module: `Unsupported` when XLA says that it has no such thing. A client behind the
    PJRT C API has the functions of its own library, and none that jaxlib brings for the CPU, as LAPACK's."""
    lacks = reason.startswith("UNIMPLEMENTED") or "No FFI handler registered" in reason
    return (Unsupported if lacks else CompileError)(program, reason)


# Each may add what it knows to XLA's reason: why a process is gone, say (`lazytpu.distributed.watch`).
EXPLANATIONS: list[Callable[[str], str]] = []


def run_error(program: str, reason: str, lost: Sequence[int] | None = ()) -> RunError:
    """The exception for a failed run: `OutOfMemory` when XLA says that the memory is full, else `RunError`."""
    kind = OutOfMemory if is_full(reason) else RunError
    for explain in EXPLANATIONS:
        reason = explain(reason)
    return kind(program, reason, lost)
