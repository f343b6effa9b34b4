"""Translation of a trace to StableHLO: import, passes, emission. It loads xDSL and all rules, which programs in the
index do not need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.utils.arg_spec import parse_pipeline

from lazytpu.aten.importer import Imported, import_trace
from lazytpu.aten.views.parts import NO_PARTS, Parts
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
    """A trace as a StableHLO module for XLA (`module`), and its program's binding.

    `text` is the module in the `lazytpu` dialect after the passes, `stablehlo` the text of `module`, and `work` its
    compile cost. `parts` is the program in clusters, if they were requested and pay.
    """

    module: ir.Module
    binding: Binding
    text: str
    stablehlo: str
    passes: tuple[PassRecord, ...]
    work: Work
    imported: str | None = None
    """The module before the passes, if it is to be dumped."""
    parts: Clustered | None = None
    notes: tuple[str, ...] = ()
    """Notes for `lazytpu.explain()`."""
    complete: bool = True
    """Whether it went through all passes: none was left out after a failure."""

    def texts(self) -> Texts:
        """Return the texts for `lazytpu.graphs()`."""
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
    of_job: bool = False,
) -> Translated:
    """Translate a trace to the program for `target` that computes the slots `live` and may donate the inputs `dead`.

    - `names`, `name`: names of slots, and of the program, for readability only.
    - `platform`: the platform of the program, if it is not this process's.
    - `parts`: decides from the compile cost whether the program is also split.
    - `memory_limit`: bytes of HBM that the program may use, 0 for no limit.
    - `tuned`: use only those passes that make this program faster.
    - `sized`: translate the program of this trace's bucket, from the records at its bound.
    - `of_job`: the processes of a job run the program together (`import_trace`).

    A pass that fails is left out with a warning, unless it is required. Raise ImportFailure, PassError or
    LoweringError, and OneSize if the bucket can have no program.
    """

    def attempt(passes: str, verify: bool) -> _Rewritten:
        marks = any(spec.name == "mark-donation" for spec in parse_pipeline(passes))
        donated = _donated(records, dead) if marks else ()  # else XLA would choose the overwritten inputs itself

        named = tuple(sorted(names.items()))
        of_sizes = NO_PARTS if sized is None else sized.bucket.forms.parts
        import_ = _Import(tuple(live), tuple(donated), named, bounds_check, sized is not None, of_job, of_sizes)
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

    # Import the trace and run the passes.
    wanted = pipeline(target, memory_limit, platform or client.platform())
    rewritten, errors = leaving_out(attempt, wanted, options.verify)
    imported, padding = rewritten.imported, rewritten.padding
    # Drop unused arguments; the pack of sizes, if any, stays the last one.
    packs = len(imported.packer.packs)
    used, aliased = drop_unused_arguments(imported.module, keep_last=padding is not None)
    if padding is not None:
        used = used[:-1]
        taken = tuple([padding.arguments[i - packs] for i in used if i >= packs])
        padding = replace(padding, arguments=taken)
    # Emit the whole program, and split it if that pays.
    module = emit(imported.module, platform=platform)
    text = print_module(imported.module)
    cost = work(imported.module)
    splits = parts is not None and parts(cost)
    in_parts = None
    if splits:
        try:
            in_parts = clustered(imported.module, module, verify=options.verify)
        except PassError as error:  # the whole program is complete already
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
class _Import:
    """The import of a program with these slots as results, these inputs to donate, and these names of slots."""

    live: tuple[int, ...]
    donated: tuple[int, ...]
    names: tuple[tuple[int, str], ...]
    bounds_check: bool
    identities: bool
    of_job: bool
    parts: Parts

    def __call__(self, records: Sequence[Record]) -> Imported:
        return import_trace(
            records,
            self.live,
            self.donated,
            dict(self.names),
            bounds_checks=self.bounds_check,
            identities=self.identities,
            of_job=self.of_job,
            parts=self.parts,
        )


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A trace after the passes: the module, its padding and `notes` on it, and the `history` of the passes. `text` is
    the module before the passes, if it is to be dumped."""

    imported: Imported
    padding: Padding | None
    notes: tuple[str, ...]
    text: str | None
    history: tuple[PassRecord, ...]


def _donated(records: Sequence[Record], dead: Sequence[int]) -> Sequence[int]:
    """Return the inputs `dead` without the initial states of recurrent layers.

    In a first step these are cached zeros (frontend/ops/first_hidden.py), and later steps run its program.
    """
    layers = [record for record in records if str(record.op).startswith("lazytpu.recurrent")]
    if not layers:
        return dead
    inputs = Slots(records).inputs
    states = {x.slot for layer in layers for name in ("hx", "cx") for x in operands(layer.arguments.get(name))}
    return [i for i in dead if i not in {inputs[slot] for slot in states if slot in inputs}]


def pipeline(target: Target, memory_limit: int = 0, platform: str = "cpu") -> str:
    """Return the passes for a target. On a TPU the program uses at most `memory_limit` bytes, unless that is 0."""
    text = for_target(target)
    return f"{text},limit-memory{{limit={memory_limit}}}" if memory_limit and platform == "tpu" else text


def drop_unused_arguments(module: ModuleOp, keep_last: bool = False) -> tuple[list[int], list[int]]:
    """Remove unused arguments of `@main`; with `keep_last`, keep the last one.

    Return the original positions of the remaining arguments, and which of these, by new position, are aliased by a
    result.
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
