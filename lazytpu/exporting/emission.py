"""Translation of a recorded graph to StableHLO, with arguments and results in the signature's order, and without
attributes of lazytpu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, SSAValue

from lazytpu.aten.importer import import_trace
from lazytpu.exporting.recording import Recorded
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import shape_of, tensor_type
from lazytpu.lowering.emit import emit
from lazytpu.options import options
from lazytpu.passes.phases import ORDER
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.passes.registry import at
from lazytpu.passes.target import Target
from lazytpu.runtime.xla.client import module_bytecode
from lazytpu.runtime.xla.mlir import func, ir, legalize_chlo
from lazytpu.runtime.xla.module_options import OPTIONS, options_of
from lazytpu.runtime.xla.portable import custom_calls

_PHASES = ("<recorded>", "<simplify>", "<patterns>", "<final>")
"""Phases whose passes change the ops. The other phases optimize for one generation, or for several devices."""
_LOCAL = ("sdy.", "mhlo.frontend_attributes")
"""Attributes about sharding, which portable artifacts cannot have; a program for one device needs none."""


@dataclass(frozen=True, slots=True)
class Port:
    """An argument or result of the function: its name, the dialect's dtype, its shape, and its slot in the trace. The
    slot is None for an unread argument, and for a result that is never written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    slot: int | None


@dataclass(frozen=True, slots=True)
class Emitted:
    """The module as bytecode, the names of the functions outside StableHLO that it calls, and its compile options for
    XLA."""

    bytecode: bytes
    custom_calls: tuple[str, ...]
    options: dict[str, Any]


class Imported:
    """A recorded graph in the dialect. Its run-time numbers are constants, except the seeds of draws, which form its
    only pack. Raises ImportFailure, and NotImplementedError for an op without a rule."""

    def __init__(self, trace: Recorded) -> None:
        draws = {record.rng for record in trace.records if record.rng is not None}
        first = min((trace.numbers[draw + 1] for draw in draws), default=0)
        offsets = {draw + 1: trace.numbers[draw + 1] - first for draw in draws}
        constants = {i: value for i, value in {**trace.numbers, **offsets}.items() if i not in draws}
        written = [*(output for output in trace.outputs if output is not None), *trace.overwritten.values()]
        self._results = list(dict.fromkeys(made.slot for made in written if made.slot is not None))
        self._inputs = [slot for record in trace.records for slot, _, empty in record.admitted if not empty]
        self._module = import_trace(trace.records, self._results, (), bounds_checks=False, constants=constants).module

    def is_input(self, result: int | None, argument: int | None) -> bool:
        """Whether a result is the unchanged argument in another slot: some ops write the existing contents."""
        if result is None or argument is None:
            return False
        function = _main(self._module)
        terminator = function.body.block.last_op
        assert terminator is not None
        packs = len(function.body.block.args) - len(self._inputs)
        value = terminator.operands[self._results.index(result)]
        return value is function.body.block.args[packs + self._inputs.index(argument)]

    def emitted(
        self, arguments: Sequence[Port], results: Sequence[Port], seed: Port | None, *, name: str, platform: str
    ) -> Emitted:
        """Return the program for a platform. Draws take their seed from `seed`, which is among the arguments.

        Raises PassError, LoweringError and NotImplementedError.
        """
        module = self._module.clone()
        self._arrange(_main(module), arguments, results, seed)
        run_pipeline(module, passes=_pipeline(Target(platform)), verify=options.verify)
        stablehlo = emit(module, name=name, platform=platform)
        needed = options_of(stablehlo)
        _strip(stablehlo, results)
        legalize_chlo(stablehlo)
        return Emitted(module_bytecode(stablehlo), tuple(custom_calls(stablehlo)), needed)

    def _arrange(self, function: FuncOp, arguments: Sequence[Port], results: Sequence[Port], seed: Port | None) -> None:
        """Replace the pack, the trace's inputs and the status of `@main` by these arguments and results."""
        block = function.body.block
        old = list(block.args)
        count = len(old) - len(self._inputs)
        packs, by_slot = old[:count], dict(zip(self._inputs, old[count:], strict=True))
        for argument in arguments:
            new = block.insert_arg(tensor_type(argument.dtype, argument.shape), len(block.args))
            new.name_hint = _identifier(argument.name)
            if argument is seed:
                _draw_from(new, packs)
            elif argument.slot is not None:
                by_slot.pop(argument.slot).replace_all_uses_with(new)
        assert not by_slot, f"inputs without an argument: {sorted(by_slot)}"
        for argument in old:
            block.erase_arg(argument)
        terminator = block.last_op
        assert isinstance(terminator, ReturnOp)
        b, computed = Builder(block, terminator), dict(zip(self._results, terminator.arguments, strict=False))
        values = [b.constant(0, r.dtype, r.shape) if r.slot is None else computed[r.slot] for r in results]
        terminator.detach()
        terminator.erase()
        block.add_op(ReturnOp(*values))
        function.function_type = FunctionType.from_lists([a.type for a in block.args], [v.type for v in values])
        function.arg_attrs, function.res_attrs = _names(arguments), _names(results)


def _main(module: ModuleOp) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp))


def _pipeline(target: Target) -> str:
    names: list[str] = []
    for step in ORDER:
        if step in _PHASES:
            names += [entry.text(target) for entry in at(step.strip("<>"), target)]
        elif not step.startswith("<") and step != "mark-donation":
            names.append(step)
    return ",".join(names)


def _names(ports: Sequence[Port]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(DictionaryAttr({"lazytpu.name": StringAttr(port.name)}) for port in ports)


def _draw_from(seed: BlockArgument, packs: Sequence[SSAValue]) -> None:
    """Let every draw take its seed from an argument, two words of 32 bits, the higher first."""
    block = seed.owner
    first = block.first_op
    assert first is not None
    b = Builder(block, first)
    words = b.convert(seed, "ui64")
    high, low = (b.reshape(b.slice(words, [i], [i + 1]), ()) for i in range(2))
    combined = b.binary("or", b.binary("mul", high, b.constant(1 << 32, "ui64")), low)
    for pack in packs:
        pack.replace_all_uses_with(b.broadcast_in_dim(combined, shape_of(pack), ()))


def _identifier(name: str) -> str:
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return plain if plain[:1].isalpha() else f"_{plain}"


def _strip(module: ir.Module, results: Sequence[Port]) -> None:
    """Remove attributes that only lazytpu and jax read, and name the results as JAX does."""

    def strip(op: Any) -> ir.WalkResult:
        for name in [name for name in op.attributes if name.startswith(_LOCAL)]:
            del op.attributes[name]
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(strip)
        if OPTIONS in module.operation.attributes:
            del module.operation.attributes[OPTIONS]
        main = next(op for op in module.body.operations if isinstance(op, func.FuncOp) and op.name.value == "main")
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get({}) for _ in main.arguments])
        named = [ir.DictAttr.get({"jax.result_info": ir.StringAttr.get(result.name)}) for result in results]
        main.result_attrs = ir.ArrayAttr.get(named)
