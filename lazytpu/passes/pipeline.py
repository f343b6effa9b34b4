"""The driver that runs passes over a module, as a pipeline's text or a target says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.dominance import misplaced
from lazytpu.ir.text import context, print_module
from lazytpu.passes.errors import PassError, describe, own_notes, without_notes
from lazytpu.passes.registry import for_target
from lazytpu.passes.registry import passes as known_passes
from lazytpu.passes.target import NAMES, Target

__all__ = ["PassError", "PassRecord", "expand", "for_target", "parse", "run_pipeline"]


CPU = Target("cpu")

Keep = Literal["nothing", "ends", "all"]


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: wall seconds, numbers of ops, and the text of the module after it if it was kept.

    Pass `number` of `total`; number 0 is the module as it came in, under the name "input"."""

    name: str
    number: int
    total: int
    seconds: float
    ops_before: int
    ops_after: int
    text: str | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {1e3 * self.seconds:.1f} ms, {self.ops_before:,} -> {self.ops_after:,} ops>"


Observer = Callable[[PassRecord, ModuleOp], None]


def expand(pipeline: str) -> str:
    """A pipeline's text in which the name of a target ("v6e") is replaced by that target's pipeline."""
    specs = parse_pipeline(pipeline)
    return ",".join(for_target(Target.parse(spec.name)) if spec.name in NAMES else str(spec) for spec in specs)


def parse(pipeline: str) -> tuple[ModulePass, ...]:
    """The passes that a text such as "cse,constant-folding{limit=64},dce" names; the name of a target stands for its
    pipeline.

    Raises ValueError that lists the known passes when one is not known, or the options of a pass given a wrong one.
    """
    made: list[ModulePass] = []
    known = known_passes()
    for spec in parse_pipeline(expand(pipeline)):
        if spec.name not in known:
            raise ValueError(f"there is no pass named {spec.name!r}; the passes are {', '.join(known)}")
        made.append(known[spec.name].load().from_spec(spec))
    return tuple(made)


def run_pipeline(
    module: ModuleOp,
    *,
    passes: str | Target = CPU,
    verify: bool,
    keep: Keep = "nothing",
    observer: Observer | None = None,
) -> list[PassRecord]:
    """Run `passes`, the text of a pipeline or the target whose pipeline it is, over `module` in place, and say what
    each did.

    The module is verified before the first pass and after the last, with `verify` after each; that every value is made
    before it is used is looked at after each in any case. `keep` says whose text
    the records hold ("ends": the input's and the last pass's). `observer` is called after each pass, and first with
    the input.

    Raises PassError, which names the pass, the op and the user's source line, when a pass fails or the module is
    invalid; the module is then half rewritten and of no further use.
    """
    sequence = parse(passes if isinstance(passes, str) else for_target(passes))
    ctx = context()
    records: list[PassRecord] = []

    def record(name: str, seconds: float) -> None:
        number, after = len(records), count_ops(module)
        before = records[-1].ops_after if records else after
        wanted = keep == "all" or (keep == "ends" and number in (0, len(sequence)))
        text = print_module(module) if wanted else None
        records.append(PassRecord(name, number, len(sequence), seconds, before, after, text))
        if observer is not None:
            observer(records[-1], module)

    check(module, "the module given to the pipeline")
    record("input", 0.0)
    for each in sequence:
        start = time.perf_counter()
        apply(each, ctx, module)
        seconds = time.perf_counter() - start
        after = f"the module after pass {each.name!r}"
        if verify or each is sequence[-1]:
            check(module, after)
        else:
            check_order(module, after)
        record(each.name, seconds)
    return records


def count_ops(module: Operation) -> int:
    """Number of ops inside a module, functions and terminators included."""
    return sum(1 + (count_ops(op) if op.regions else 0) for r in module.regions for b in r.blocks for op in b.ops)


def apply(each: ModulePass, ctx: Context, module: ModuleOp) -> None:
    """Run one pass; whatever goes wrong is raised as PassError that names it."""
    try:
        each.apply(ctx, module)
    except Exception as error:  # noqa: BLE001  (whatever a pass raises is told with its name)
        place = "".join(f"\n  {line}" for line in own_notes(error))
        raise PassError(
            f"pass {each.name!r} failed with {type(error).__name__}: {error}{place}\n"
            f"This is a bug of the pass. LAZYTPU_DUMP=DIR keeps the module as it came in; "
            f"`lazytpu-opt -p {each.pipeline_pass_spec()} FILE` runs the pass alone on it."
        ) from without_notes(error)


def check_order(module: ModuleOp, what: str) -> None:
    """Raises PassError that shows the first op that uses a value before it is made. Cheap enough (1 us an op, where
    verifying takes 50) to be done after every pass, so that the pass is known."""
    found = misplaced(module)
    if found is not None:
        raise PassError(f"{what} is not valid: {found}\n  {describe(found.op)}")


def check(module: ModuleOp, what: str) -> None:
    """Verify a module; raises PassError that shows the first invalid op and its source line."""
    check_order(module, what)
    try:
        module.verify()
    except (VerifyException, ValueError) as error:
        reason = f"{what} is not valid: {error}"
        for op in module.walk():
            try:
                op.verify(verify_nested_ops=False)
            except (VerifyException, ValueError):
                reason += f"\n  {describe(op)}"
                break
        raise PassError(reason) from without_notes(error)
