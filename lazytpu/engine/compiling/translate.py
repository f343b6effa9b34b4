"""From a trace to StableHLO: import, passes, emission. Loads xDSL and all rules, which a program in the
index does not need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.utils.arg_spec import parse_pipeline

from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.compiling import tuning
from lazytpu.engine.compiling.clusters import Clustered, clustered
from lazytpu.engine.compiling.estimate import Work, work
from lazytpu.engine.compiling.leaving_out import leaving_out
from lazytpu.engine.compiling.pass_errors import left_out
from lazytpu.engine.programs.binding import Binding, Padding
from lazytpu.engine.sizes.padded import pad
from lazytpu.engine.sizes.templates import Sized
from lazytpu.inspection import debug
from lazytpu.inspection.graphs import Texts
from lazytpu.ir.text import print_module
from lazytpu.lowering.emit import emit
from lazytpu.lowering.text import stablehlo_text
from lazytpu.options import options
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import PassRecord, for_target, run_pipeline
from lazytpu.passes.target import Target
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.trie import Record


@dataclass(frozen=True, slots=True)
class Translated:
    """A trace as XLA takes it (`module`), and how its program is bound to it.

    `text` is the module in the `lazytpu` dialect after the passes, `stablehlo` the text of `module`, and `work` what
    compiling it costs. `parts` is the same program in clusters, when they were asked for and pay.
    """

    module: ir.Module
    binding: Binding
    text: str
    stablehlo: str
    passes: tuple[PassRecord, ...]
    work: Work
    imported: str | None = None
    "The module as it came to the passes, when it is to be dumped."
    parts: Clustered | None = None
    notes: tuple[str, ...] = ()
    "What `lazytpu.explain()` says of it."
    complete: bool = True
    "Whether it went through all passes: none failed and was left out."

    def texts(self) -> Texts:
        """What `lazytpu.graphs()` shows."""
        return Texts(self.text, self.stablehlo, self.passes)


def translate(
    records: Sequence[Record],
    live: Sequence[int],
    dead: Sequence[int],
    names: Mapping[int, str],
    *,
    name: str,
    bounds_check: bool,
    target: Target,
    platform: str | None = None,
    parts: Callable[[Work], bool] | None = None,
    memory_limit: int = 0,
    tuned: bool = False,
    sized: Sized | None = None,
) -> Translated:
    """The program for `target` of a trace that computes the slots `live` and may take the memory of the inputs `dead`.

    `names` are names of slots, and `name` is the program's, both for reading only. `platform` is where it is to run,
    when that is not where programs of this process do. The program is also taken apart if `parts` says so, given what
    compiling it costs. `memory_limit` are the bytes of HBM that it may take, 0 for what there is. With `tuned` the
    passes are those that pay for this program. The program of a `sized` trace has the records at the bound of its
    bucket, and is made one for all sizes of that; OneSize says why not. A pass that fails is left out, with a warning,
    unless it is required. Raises ImportFailure, PassError or LoweringError.
    """

    def attempt(passes: str, verify: bool) -> _Rewritten:
        marks = any(spec.name == "mark-donation" for spec in parse_pipeline(passes))
        donated = _donated(records, dead) if marks else ()  # XLA would choose itself what to overwrite

        def import_(records: Sequence[Record], identities: bool = False) -> Imported:
            return import_trace(records, live, donated, names, bounds_checks=bounds_check, identities=identities)

        imported, padding, notes = (import_(records), None, ()) if sized is None else pad(import_, sized, bounds_check)
        before = print_module(imported.module) if options.dump else None
        if tuned and target.generation is not None:
            passes = tuning.fastest(imported.module, passes, target.generation, name)
        history = run_pipeline(
            imported.module,
            passes=passes,
            verify=verify,
            keep="all" if options.debug >= 4 else "nothing",
            observer=debug.observer(name),
        )
        return _Rewritten(imported, padding, notes, before, tuple(history))

    wanted = pipeline(target, memory_limit, platform or client.platform())
    rewritten, errors = leaving_out(attempt, wanted, options.verify)
    imported, padding = rewritten.imported, rewritten.padding
    packs = len(imported.packer.packs)
    used, aliased = drop_unused_arguments(imported.module, keep_last=padding is not None)
    if padding is not None:
        used = used[:-1]
        taken = tuple([padding.arguments[i - packs] for i in used if i >= packs])
        padding = replace(padding, arguments=taken)
    module = emit(imported.module, platform=platform)
    text = print_module(imported.module)
    cost = work(imported.module)
    apart = parts is not None and parts(cost)
    in_parts = None
    if apart:
        try:
            in_parts = clustered(imported.module, module, verify=options.verify)
        except PassError as error:  # the whole program was made before
            if error.by is None:
                raise
            errors.append(error)
    binding = Binding(
        packer=imported.packer,
        packs=tuple(i for i in used if i < packs),
        inputs=tuple(i - packs for i in used if i >= packs),
        donated=frozenset([used[i] - packs for i in aliased]),
        live=tuple(live),
        checks=imported.checks,
        padding=padding,
    )
    return Translated(
        module=module,
        binding=binding,
        text=text,
        stablehlo=stablehlo_text(module),
        passes=rewritten.history,
        work=cost,
        imported=rewritten.text,
        parts=in_parts,
        notes=(*rewritten.notes, *(left_out(error, name) for error in errors)),
        complete=not errors,
    )


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A trace that went through its passes: the module, its padding with `notes` on that, the `text` of the module
    before, if it is to be dumped, and the `history` of the passes."""

    imported: Imported
    padding: Padding | None
    notes: tuple[str, ...]
    text: str | None
    history: tuple[PassRecord, ...]


def _donated(records: Sequence[Record], dead: Sequence[int]) -> Sequence[int]:
    """The inputs `dead` without the states that recurrent layers begin with: in a first step these are zeros, which are
    kept (frontend/ops/first_hidden.py), and the others run its program."""
    layers = [record for record in records if str(record.op).startswith("lazytpu.recurrent")]
    if not layers:
        return dead
    inputs = Slots(records).inputs
    states = {x.slot for layer in layers for name in ("hx", "cx") for x in operands(layer.arguments.get(name))}
    return [i for i in dead if i not in {inputs[slot] for slot in states if slot in inputs}]


def pipeline(target: Target, memory_limit: int = 0, platform: str = "cpu") -> str:
    """The passes for a target; where it runs on a TPU the program takes at most `memory_limit` bytes, if that is not
    0."""
    text = for_target(target)
    return f"{text},limit-memory{{limit={memory_limit}}}" if memory_limit and platform == "tpu" else text


def drop_unused_arguments(module: ModuleOp, keep_last: bool = False) -> tuple[list[int], list[int]]:
    """Remove the arguments of `@main` that nothing reads; with `keep_last`, not the last one.

    Returns the original positions of those that stay, and which of these (by new position) are aliased by a result.
    """
    function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    block, attributes = function.body.block, list(function.arg_attrs or ())
    last = len(block.args) - 1 if keep_last else None
    used = [i for i, argument in enumerate(block.args) if argument.uses or i == last]
    for argument in [a for i, a in enumerate(block.args) if not a.uses and i != last]:
        block.erase_arg(argument)
    attributes = [attributes[i] for i in used]
    function.arg_attrs = ArrayAttr(attributes)
    function.function_type = FunctionType.from_lists([a.type for a in block.args], list(function.function_type.outputs))
    return used, [i for i, a in enumerate(attributes) if "lazytpu.alias" in a.data]
