"""From a trace to StableHLO: import, passes, emission. Loads xDSL and all rules; a program that the index knows does
without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp

from lazytpu.aten.failures import Check
from lazytpu.aten.importer import import_trace
from lazytpu.aten.scalars import Packer
from lazytpu.engine.index import Entry
from lazytpu.inspect import debug
from lazytpu.inspect.graphs import Texts
from lazytpu.ir.text import print_module
from lazytpu.lowering.emit import emit
from lazytpu.lowering.text import stablehlo_text
from lazytpu.options import options
from lazytpu.passes.pipeline import PassRecord, run_pipeline
from lazytpu.runtime.client import ir
from lazytpu.trace.trie import Record


@dataclass(frozen=True, slots=True)
class Translated:
    """A trace as XLA takes it, and what running it needs to know.

    `packs` are the positions of the packs that the program takes, `inputs` the indices of the trace's inputs, after
    them; `donated` the inputs whose memory a result takes. `text` is the module in the `lazytpu` dialect after the
    passes, `stablehlo` that of `module`.
    """

    module: ir.Module
    packer: Packer
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: frozenset[int]
    checks: tuple[Check, ...]
    text: str
    stablehlo: str
    passes: tuple[PassRecord, ...]

    def texts(self) -> Texts:
        """What `lazytpu.graphs()` shows."""
        return Texts(self.text, self.stablehlo, self.passes)

    def entry(self, program: str, live: tuple[int, ...]) -> Entry:
        """What the index keeps of it; `program` is the key of its executable."""
        return Entry(
            program=program,
            entries=self.packer.entries,
            packs=self.packs,
            inputs=self.inputs,
            donated=tuple(sorted(self.donated)),
            live=live,
            checks=tuple((check.record, check.message, check.error) for check in self.checks),
        )


def translate(
    records: Sequence[Record],
    live: Sequence[int],
    dead: Sequence[int],
    names: Mapping[int, str],
    *,
    name: str,
    bounds_check: bool,
) -> Translated:
    """The program of a trace that computes the slots `live` and may take the memory of the inputs `dead`.

    `names` are names of slots, and `name` is the program's, both for reading only. Raises ImportFailure, PassError or
    LoweringError.
    """
    imported = import_trace(records, live, dead, names, bounds_checks=bounds_check)
    history = run_pipeline(
        imported.module,
        verify=options.verify,
        keep="all" if options.debug >= 4 else "nothing",
        observer=debug.observer(name),
    )
    packs = len(imported.packer.packs)
    kept, aliased = drop_unused_arguments(imported.module)
    module = emit(imported.module)
    return Translated(
        module=module,
        packer=imported.packer,
        packs=tuple(i for i in kept if i < packs),
        inputs=tuple(i - packs for i in kept if i >= packs),
        donated=frozenset(kept[i] - packs for i in aliased),
        checks=imported.checks,
        text=print_module(imported.module),
        stablehlo=stablehlo_text(module),
        passes=tuple(history),
    )


def drop_unused_arguments(module: ModuleOp) -> tuple[list[int], list[int]]:
    """Remove the arguments of `@main` that nothing reads.

    Returns the original positions of those that stay, and which of these (by new position) are aliased by a result.
    """
    function = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    block, attributes = function.body.block, list(function.arg_attrs or ())
    kept = [i for i, argument in enumerate(block.args) if argument.uses]
    for argument in [a for a in block.args if not a.uses]:
        block.erase_arg(argument)
    attributes = [attributes[i] for i in kept]
    function.arg_attrs = ArrayAttr(attributes)
    function.function_type = FunctionType.from_lists([a.type for a in block.args], list(function.function_type.outputs))
    return kept, [i for i, a in enumerate(attributes) if "lazytpu.alias" in a.data]
