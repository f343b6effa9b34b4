"""Import: from a trace to a module of the dialect. Each record is imported by its rule, and storages become values
(R1)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from lazytpu.aten import dtypes
from lazytpu.aten.ambient import under
from lazytpu.aten.dispatch import Evaluation, Meta, evaluate
from lazytpu.aten.errors import Check, ImportFailure
from lazytpu.aten.indexing.overlapping import combined, write_part
from lazytpu.aten.locations import location_of
from lazytpu.aten.recompute import BEGIN, END, GATHER, Recomputation
from lazytpu.aten.scalars import PACKS, Packer, PackPlan
from lazytpu.aten.schema import functional
from lazytpu.aten.views import parts as views_of_parts
from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.aten.views.parts import NO_PARTS, Parts
from lazytpu.ir.builder import Builder
from lazytpu.ir.module import set_members, set_replicas
from lazytpu.ir.symbolic import Derivation, LostSize
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from lazytpu.trace.settings import PRECISION
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

# torch's float32 matmul precision -> XLA's. "medium" allows bfloat16 products, which are a TPU's default.
PRECISIONS = {"highest": "highest", "high": "high", "medium": "default"}
# The errors of rules and torch's decompositions for unexpected arguments.
_FAILURES = (ValueError, AssertionError, VerifyException, KeyError, TypeError, IndexError, ArithmeticError, MemoryError)
NO_NUMBERS: Mapping[int, Any] = MappingProxyType({})
UNKNOWN = 1 << 30  # length of a pack while it is being filled; the actual one is set at the end


@dataclass(frozen=True)
class Imported:
    """An imported trace.

    The function's arguments are the packs of run-time numbers (in the order of `packer.packs`), then the trace's
    inputs. Its results are the values of the live slots, then the status: an i1 vector with an element for each of
    `checks`, true if it passed, or [True] if there are none.
    """

    module: ModuleOp
    packer: Packer
    checks: tuple[Check, ...]


def import_trace(
    records: Sequence[Record],
    live: Sequence[int],
    donated: Sequence[int],
    names: Mapping[int, str] | None = None,
    *,
    bounds_checks: bool = True,
    constants: Mapping[int, Any] = NO_NUMBERS,
    identities: bool = False,
    of_job: bool = False,
    parts: Parts = NO_PARTS,
) -> Imported:
    """Return the module that computes the values of the slots `live`.

    `donated` are indices into the trace's inputs, in order of admission: results may reuse their memory. `names` maps
    slots to names, such as a parameter's; an input has its own name or the name of the value that overwrote it. The
    run-time numbers in `constants`, by index, become constants of the module with these values; the others are its
    arguments. With `identities`, reshapes, slices and pads that change nothing are kept, so that programs of several
    sizes have the same ops. `parts` are the parts of tensors whose sizes depend on values. `of_job` says that the
    processes of a job run the module together, one on each device of the meshes of its collectives. Raises
    ImportFailure.
    """
    importer = Importer(records, bounds_checks, constants, identities, of_job, parts)
    return importer.run(live, frozenset(donated), names or {})


class Importer:
    """Imports records one after the other; `memory` has the array behind each slot."""

    def __init__(
        self,
        records: Sequence[Record],
        bounds_checks: bool,
        constants: Mapping[int, Any],
        identities: bool = False,
        of_job: bool = False,
        parts: Parts = NO_PARTS,
    ):
        self.records = records
        self.of_job = of_job
        self.parts = parts
        self.number = 0  # of the current record
        self.bounds_checks = bounds_checks
        self.block = Block()
        self.b = Builder(self.block)
        self.b.identities = identities
        self.plan = PackPlan(constants=constants)
        for pack in PACKS:
            self.plan.arguments[pack] = self.block.insert_arg(tensor_type(pack, (UNKNOWN,)), len(self.block.args))
        self.memory: dict[int, SSAValue] = {}  # slot -> array in memory order
        self.bases: dict[int, Base] = {}
        self.inputs: list[tuple[int, SSAValue]] = []  # slot and argument of each input, in order of admission
        self.successors: dict[int, int] = {}  # slot -> the slot that overwrote its storage
        self.checking: list[int] = []  # for each check, the index of its record
        self.recomputation = Recomputation()

    def run(self, live: Sequence[int], donated: frozenset[int], names: Mapping[int, str]) -> Imported:
        self.import_records()
        results = [self.memory[slot] for slot in live]
        checks = self._checks(results)
        self._settle_packs()
        self.block.add_op(ReturnOp(*results))
        attributes = self._attributes(live, donated, names)
        function = FuncOp("main", ([a.type for a in self.block.args], [v.type for v in results]), Region(self.block))
        function.arg_attrs = attributes
        unnamed = [DictionaryAttr({}) for _ in results[len(live) :]]
        function.res_attrs = ArrayAttr([*(_result_attributes(names.get(slot)) for slot in live), *unnamed])
        module = ModuleOp([function])
        for record in self.records:
            mesh = record.arguments.get("mesh")
            if mesh and not self.of_job:  # an imagined job's program runs on all its ranks
                set_replicas(module, prod(mesh))
            elif record.collective:  # the same on all collectives of the trace
                set_members(module, range(prod(mesh)) if mesh else record.arguments["members"])
        return Imported(module, self.plan.packer(), checks)

    def import_records(self) -> None:
        """Import all records. Raises ImportFailure."""
        folder = os.getcwd()
        for index, record in enumerate(self.records):
            if Derivation.active is not None:
                Derivation.active.record = record
            self.number = index
            try:
                with self.b.at(location_of(record.line, folder)), under(dict(record.settings)):
                    self.record(record)
            except (NotImplementedError, ImportFailure):
                raise
            except LostSize as error:
                error.record = record
                raise
            except _FAILURES as error:
                raise ImportFailure(record, error) from error
            self.checking.extend([index] * (len(self.b.checks) - len(self.checking)))

    # -- one record

    def record(self, record: Record) -> None:
        for slot, layout, empty in record.admitted:
            self.admit(slot, layout, empty)
        if str(record.op) in (BEGIN, END):
            self._recompute(record)
            return
        self.b.precision = PRECISIONS[dict(record.settings).get(PRECISION, "highest")]
        bound = {name: self._argument(value) for name, value in record.arguments.items()}
        for argument in record.op._schema.arguments:
            if argument.name not in bound:
                bound[argument.name] = argument.default_value if argument.has_default_value() else None
        if str(record.op) == GATHER:
            key = (record.arguments["group"], dtype_of(bound["self"]), shape_of(bound["self"]))
            bound["self"] = self.recomputation.again(self.b, bound["self"], key, record.in_backward)
        metas = [(dtypes.name(o.dtype), o.shape) for o in record.outs if o is not None]
        rng = None if record.rng is None else self.seed_and_offset(record.rng)
        if self._write_part(record, bound):
            return
        evaluation = self._of_nothing(record, bound, metas) or evaluate(self.b, record.op, bound, metas, rng)
        layouts, values = _present(record, _flatten(evaluation.returns))
        for slot, layout, value in zip(record.out_slots, layouts, values, strict=True):
            self._produce(record, slot, layout, value)
        for name, slots in record.written.items():
            self._write(record, name, slots, evaluation.writes[name])

    def seed_and_offset(self, index: int) -> tuple[SSAValue, SSAValue]:
        """Return the run-time numbers of a random op (0-d ui64); the first one has the number `index`."""
        return self.plan.element(self.b, index, "ui64"), self.plan.element(self.b, index + 1, "ui64")

    def _of_nothing(self, record: Record, bound: dict[str, Any], metas: list[Meta]) -> Evaluation | None:
        """The result of an op whose operands and results are all empty. torch accepts dtypes here for which it has no
        kernel and we have no rule."""
        arrays = [v for v in _flatten(list(bound.values())) if isinstance(v, SSAValue)]
        shapes = [shape_of(v) for v in arrays] + [shape for _, shape in metas]
        if not shapes or not all(0 in shape for shape in shapes):
            return None
        zeros = iter([self.b.constant(0, dtype, shape) for dtype, shape in metas])
        returns = [None if o is None else next(zeros) for o in record.outs]
        return Evaluation(returns, {name: bound[name] for name in record.written})

    def _recompute(self, record: Record) -> None:
        if str(record.op) == END:
            self.recomputation.end()
            return
        ticket = self._argument(record.arguments["ticket"]).materialize(self.b, "i64")
        self.recomputation.begin([operand.slot for operand in record.arguments["saved"]], ticket)

    def admit(self, slot: int, layout: Layout, empty: bool) -> None:
        base = base_of(layout)
        self.bases[slot] = base
        if empty:
            self.memory[slot] = self.b.constant(0, base.dtype, base.memory_shape)
            return
        argument = self.block.insert_arg(tensor_type(base.dtype, base.memory_shape), len(self.block.args))
        self.memory[slot] = argument
        self.inputs.append((slot, argument))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            return self.read(value)
        if isinstance(value, Number):
            scalar = self.plan.scalar(value.index, value.kind)
            return scalar if value.dtype is None else scalar.materialize(self.b, dtypes.name(value.dtype))
        if isinstance(value, list):
            return [self._argument(v) for v in value]
        return list(value) if isinstance(value, tuple) else value

    def read(self, operand: Operand) -> SSAValue:
        """A tensor argument as a dense array."""
        base = self.bases[operand.slot]
        memory = self.recomputation.read(self.b, operand.slot, self.memory[operand.slot])
        if operand.view is None:
            return base.to_logical(self.b, memory)
        moving = (self.number, operand.slot) in self.parts.views
        return (views_of_parts.read if moving else read)(self.b, memory, base, _view(operand.view))

    def _produce(self, record: Record, slot: int, layout: Layout, value: SSAValue) -> None:
        expected = dtypes.name(layout.dtype), layout.shape
        if self.number in self.parts.joined:
            value = views_of_parts.crop(self.b, value, layout.shape)
        if (dtype_of(value), shape_of(value)) != expected:
            raise AssertionError(
                f"its rule returned {dtype_of(value)}{list(shape_of(value))}, "
                f"torch expects {expected[0]}{list(expected[1])}"
            )
        base = base_of(layout)
        self.bases[slot] = base
        self.memory[slot] = base.to_memory(self.b, value)
        self.recomputation.produce(slot, self.memory[slot])

    def _write(self, record: Record, name: str, slots: tuple[int, ...], values: Any) -> None:
        argument = record.arguments[name]
        operands: list[Any] = argument if isinstance(argument, list) else [argument]
        values = _flatten([values])
        latest: dict[int, int] = {}  # an op may write two views of one storage
        for operand, slot, value in zip(operands, slots, values, strict=True):
            before: int = operand.slot
            old = latest.get(before, before)
            base, memory = self.bases[old], self.memory[old]
            view = _natural(base) if operand.view is None else _view(operand.view)
            if (dtype_of(value), shape_of(value)) != (view.dtype, view.size):
                raise AssertionError(
                    f"the new value of '{name}' is {dtype_of(value)}{list(shape_of(value))}, "
                    f"expected {view.dtype}{list(view.size)}"
                )
            writing = views_of_parts.write if (self.number, before) in self.parts.views else write
            covers_storage = operand.view is None
            new = base.to_memory(self.b, value) if covers_storage else writing(self.b, memory, base, view, value)
            self._overwrite(old, slot, base, new)
            latest[before] = slot

    def _write_part(self, record: Record, bound: dict[str, Any]) -> bool:
        """Apply an op that writes a part of a view with overlapping elements to the memory instead. Return whether it
        is such an op."""
        target = record.arguments.get("self")
        if "self" not in record.written or not isinstance(target, Operand) or target.view is None:
            return False
        view, counterpart = _view(target.view), functional(record.op)
        if counterpart is None or combined(record.op, bound) is None or not view.overlaps or 0 in view.size:
            return False

        def apply(changes: dict[str, Any]) -> SSAValue:
            arguments = {**bound, **changes}
            (result,) = evaluate(self.b, counterpart, arguments, [(dtype_of(arguments["self"]), view.size)]).returns
            return result

        base, (slot,) = self.bases[target.slot], record.written["self"]
        new = write_part(self.b, record.op, self.memory[target.slot], base, view, bound, apply)
        self._overwrite(target.slot, slot, base, new)
        return True

    def _overwrite(self, old: int, slot: int, base: Base, memory: SSAValue) -> None:
        """Make `slot` the new value of the storage of `old`."""
        self.memory[slot], self.bases[slot] = memory, base
        self.recomputation.produce(slot, memory)
        self.successors[old] = slot

    # -- the end

    def _checks(self, results: list[SSAValue]) -> tuple[Check, ...]:
        """Gather all checks into one result, the status."""
        b, checks = self.b, self.b.checks if self.bounds_checks else []
        passed = [b.reshape(ok, (1,)) for ok, _, _ in checks] or [b.constant(True, "i1", (1,))]
        results.append(passed[0] if len(passed) == 1 else b.concatenate(passed, 0))
        return tuple(
            Check(message, error, str(self.records[index].op), self.records[index].line, index)
            for (_, message, error), index in zip(checks, self.checking, strict=False)
        )

    def _settle_packs(self) -> None:
        """Give each pack its length, which is known only now; drop packs without numbers."""
        for pack, old in self.plan.arguments.items():
            assert isinstance(old, BlockArgument)
            entries = self.plan.entries[pack]
            if entries:
                new = self.block.insert_arg(tensor_type(pack, (len(entries),)), old.index)
                new.name_hint = f"numbers_{pack}"
                old.replace_all_uses_with(new)
            self.block.erase_arg(old)

    def _attributes(
        self, live: Sequence[int], donated: frozenset[int], names: Mapping[int, str]
    ) -> ArrayAttr[DictionaryAttr]:
        """For each argument: its name, whether it may be donated, and the result that succeeds it."""
        result_of = {slot: i for i, slot in enumerate(live)}
        entries = {
            id(a): DictionaryAttr({"lazytpu.name": StringAttr(a.name_hint or "numbers")}) for a in self.block.args
        }
        for i, (slot, argument) in enumerate(self.inputs):
            last = slot
            while last in self.successors and last not in names:
                last = self.successors[last]
            name = names.get(last, f"input_{i}")
            argument.name_hint = _identifier(name)
            attributes: dict[str, Attribute] = {"lazytpu.name": StringAttr(name)}
            if i in donated:
                attributes["lazytpu.donate"] = UnitAttr()
                last = slot
                while last in self.successors and last not in result_of:
                    last = self.successors[last]
                if last in result_of:
                    attributes["lazytpu.successor"] = IntegerAttr(result_of[last], i64)
            entries[id(argument)] = DictionaryAttr(attributes)
        return ArrayAttr(entries[id(a)] for a in self.block.args)


def _result_attributes(name: str | None) -> DictionaryAttr:
    return DictionaryAttr({} if name is None else {"lazytpu.name": StringAttr(name)})


def _identifier(name: str) -> str:
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return plain if plain[:1].isalpha() else f"_{plain}"


def base_of(layout: Layout) -> Base:
    """How views of a value of this layout are taken."""
    return Base(dtypes.name(layout.dtype), tuple(layout.shape), tuple(layout.stride))


def _natural(base: Base) -> View:
    return View(base.size, base.stride, 0, base.dtype)


def _view(view: tuple[tuple[int, ...], tuple[int, ...], int, Any]) -> View:
    size, stride, offset, dtype = view
    return View(tuple(size), tuple(stride), offset, dtypes.name(dtype))


def _present(record: Record, values: list[Any]) -> tuple[list[Layout], list[SSAValue]]:
    """Return the layouts and values of a record's results, without absent ones. A value that was not requested, such as
    a gradient outside of `output_mask`, is dropped."""
    if len(values) != len(record.outs):
        raise AssertionError(f"got {len(values)} results, expected {len(record.outs)}")
    present = [(layout, value) for layout, value in zip(record.outs, values, strict=True) if layout is not None]
    missing = [index for index, (_, value) in enumerate(present) if value is None]
    if missing:
        raise AssertionError(f"got no value for result {missing[0]} of {len(present)}")
    return [layout for layout, _ in present], [value for _, value in present]


def _flatten(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return [f for v in values for f in _flatten(v)]
    return [values]
