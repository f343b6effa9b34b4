"""The driver that runs a pipeline, given as text or by a target, over a module."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline

from lazytpu.ir.dominance import misplaced
from lazytpu.ir.text import context, print_module
from lazytpu.ir.validity import verify
from lazytpu.passes.errors import PassError, Unsupported, describe, op_notes, without_notes
from lazytpu.passes.registry import for_target
from lazytpu.passes.registry import passes as known_passes
from lazytpu.passes.target import NAMES, Target

__all__ = ["PassError", "PassRecord", "expand", "for_target", "parse", "run_pipeline", "without"]


CPU = Target("cpu")

Keep = Literal["nothing", "ends", "all"]


@dataclass(frozen=True)
class PassRecord:
    """The record of one pass: wall seconds, op counts, and the text of the module after it if `keep` asked for that.

    This is pass `number` of `total`; number 0, named "input", is the module before the first pass.
    """

    name: str
    number: int
    total: int
    seconds: float
    ops_before: int
    ops_after: int
    text: str | None = None
    notes: tuple[str, ...] = ()
    """The decisions of a pass with a cost model, with their estimates; empty for others."""

    def __repr__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<{self.name}: {1e3 * self.seconds:.1f} ms, {self.ops_before:,} -> {self.ops_after:,} ops{notes}>"


@runtime_checkable
class Explaining(Protocol):
    """A pass that can describe its changes to a module."""

    def notes(self, module: ModuleOp) -> Sequence[str]: ...


Observer = Callable[[PassRecord, ModuleOp], None]


def expand(pipeline: str) -> str:
    """The text of a pipeline with each target name ("v6e") replaced by that target's pipeline."""
    specs = parse_pipeline(pipeline)
    return ",".join(for_target(Target.parse(spec.name)) if spec.name in NAMES else str(spec) for spec in specs)


def without(pipeline: str, name: str) -> str:
    """Return a pipeline without one pass; the registry may name another pass to take its place."""
    entry = known_passes().get(name)
    instead = [entry.instead] if entry is not None and entry.instead is not None else []
    specs = parse_pipeline(pipeline)
    return ",".join(text for spec in specs for text in (instead if spec.name == name else [str(spec)]))


def parse(pipeline: str) -> tuple[ModulePass, ...]:
    """The passes of a pipeline such as "cse,constant-folding{limit=64},dce"; a target name stands for its pipeline.

    Raises ValueError for an unknown pass, listing the known ones, and for an unknown option, listing the options.
    """
    sequence: list[ModulePass] = []
    available = known_passes()
    for spec in parse_pipeline(expand(pipeline)):
        if spec.name not in available:
            raise ValueError(f"there is no pass named {spec.name!r}; the passes are {', '.join(available)}")
        sequence.append(available[spec.name].load().from_spec(spec))
    return tuple(sequence)


def run_pipeline(
    module: ModuleOp,
    *,
    passes: str | Target = CPU,
    verify: bool,
    keep: Keep = "nothing",
    observer: Observer | None = None,
) -> list[PassRecord]:
    """Run `passes`, the text of a pipeline or a target, over `module` in place; return a record of each pass.

    The module is verified before the first pass and after the last, and with `verify` after every pass. After every
    pass, values must be defined before they are used. `keep` selects the records that hold the text of the module
    ("ends": the input and the last pass). `observer` is called with the input and after each pass.

    Raises PassError, which names the pass, the op and the user's source line, when a pass fails or leaves an invalid
    module. The module is then partly rewritten and must be discarded.
    """
    sequence = parse(passes if isinstance(passes, str) else for_target(passes))
    ctx = context()
    records: list[PassRecord] = []

    def record(name: str, seconds: float, notes: Sequence[str] = ()) -> None:
        number, ops_after = len(records), count_ops(module)
        ops_before = records[-1].ops_after if records else ops_after
        has_text = keep == "all" or (keep == "ends" and number in (0, len(sequence)))
        text = print_module(module) if has_text else None
        records.append(PassRecord(name, number, len(sequence), seconds, ops_before, ops_after, text, tuple(notes)))
        if observer is not None:
            observer(records[-1], module)

    check(module, "the module given to the pipeline")
    record("input", 0.0)
    for module_pass in sequence:
        start = time.perf_counter()
        notes = apply(module_pass, ctx, module)
        seconds = time.perf_counter() - start
        label = f"the module after pass {module_pass.name!r}"
        if verify or module_pass is sequence[-1]:
            check(module, label, module_pass.name)
        else:
            check_order(module, label, module_pass.name)
        record(module_pass.name, seconds, notes)
    return records


def count_ops(module: Operation) -> int:
    """The number of ops in a module, functions and terminators included."""
    return sum(1 + (count_ops(op) if op.regions else 0) for r in module.regions for b in r.blocks for op in b.ops)


def apply(module_pass: ModulePass, ctx: Context, module: ModuleOp) -> Sequence[str]:
    """Run one pass, and return its own description of its changes. Any error but exhausted memory is raised as a
    PassError that names the pass."""
    try:
        module_pass.apply(ctx, module)
        return module_pass.notes(module) if isinstance(module_pass, Explaining) else ()
    except MemoryError:
        raise
    except Unsupported as error:
        raise PassError(f"pass {module_pass.name!r} refuses the module: {error}") from without_notes(error)
    except Exception as error:  # noqa: BLE001  (any error of a pass is reported with the pass's name)
        notes = "".join(f"\n  {note}" for note in op_notes(error))
        raise PassError(
            f"pass {module_pass.name!r} failed with {type(error).__name__}: {error}{notes}\n"
            f"This is a bug in the pass. LAZYTPU_DUMP=DIR writes the input module to a file; "
            f"`lazytpu-opt -p {module_pass.pipeline_pass_spec()} FILE` runs the pass alone on it.",
            by=module_pass.name,
        ) from without_notes(error)


def check_order(module: ModuleOp, what: str, by: str | None = None) -> None:
    """Raise PassError for the first op that uses a value before it is defined, after the pass `by`. At 1 us per op,
    against 50 for verification, it can run after every pass, so that the error names the right one."""
    use = misplaced(module)
    if use is not None:
        raise PassError(f"{what} is not valid: {use}\n  {describe(use.op)}", by)


def check(module: ModuleOp, what: str, by: str | None = None) -> None:
    """Verify a module after the pass `by`. Raises PassError with the first invalid op and its source line."""
    check_order(module, what, by)
    try:
        verify(module)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (verifiers expect ops whose attributes are there)
        reason = f"{what} is not valid: {error}"
        for op in module.walk():
            try:
                op.verify(verify_nested_ops=False)
            except Exception:  # noqa: BLE001
                reason += f"\n  {describe(op)}"
                break
        raise PassError(reason, by) from without_notes(error)
