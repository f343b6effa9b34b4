"""Usual causes of a difference, and their fixes: the last batch, a growing cache, gradients kept alive."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lazytpu.engine.recompiles import wording
from lazytpu.engine.recompiles.compare import SWITCHES, ArgumentChange
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Number, Record


@dataclass(frozen=True, slots=True)
class Hint:
    """A probable cause: its name, a note in parentheses, and the fix. `expected` says that it happens once and needs no
    fix."""

    name: str = ""
    note: str = ""
    fix: str = ""
    expected: bool = False


_NONE_NEEDED = "none needed: each of the two is compiled once"

LAST_BATCH = Hint(
    "last-batch",
    "(last batch)",
    "DataLoader(..., drop_last=True), or pad the last batch; as it is, its program is compiled once and kept",
)
VARYING = Hint("varying-size", "(a size that varies)", "pad to one size, or to a few (each is compiled once)")
PARAMETER = Hint(
    "other-module",
    "(a tensor of another module or model)",
    "none needed: the sizes of each module are compiled once",
)
RANK = Hint("", "", "give it the same number of dimensions every time")
DTYPE = Hint("", "", "convert it once, before the loop, or keep one dtype")
NUMBER_TYPE = Hint("number-type", "(a Python number of another type)", "write 2.0 for a float every time, never 2")
GENERALIZED = Hint(
    "generalized",
    "(a number that changes: from now on it is an argument of the program)",
    "none needed: no value of it compiles again",
    expected=True,
)
CHANGING_NUMBER = Hint(
    "changing-number",
    "(a number that changes)",
    "keep it fixed, use a few values, or give it as a tensor where the op takes one: each value is a program",
)
FLAG = Hint("", "", "keep it fixed: each value is a program")
TRAIN_EVAL = Hint("train-eval", "(model.train() and model.eval())", _NONE_NEEDED, expected=True)
CALLED_AGAIN = Hint(
    "called-again",
    "(the model is called another number of times)",
    "none needed if these numbers are few: each is compiled once",
)
EVALUATION = Hint("evaluation", "(without a backward pass)", _NONE_NEEDED, expected=True)
INDEX = Hint(
    "changing-index",
    "(a Python index that changes)",
    "index with a tensor on tpu (x[i] with i a 0-d or 1-d integer tensor, or index_select): no new program for each i",
)
GENERAL_INDEX = Hint(
    "general-index",
    "(a Python index that changes: from now on it is an argument of the program)",
    "none needed: no value of it compiles again",
    expected=True,
)
STRIDES = Hint("strides", "(other strides)", "call .contiguous() where it is made, so that it is the same every time")
SWITCHED = Hint("", "", "set it once, before the first step")
OTHER_TENSOR = Hint(
    "", "", "use the tensors in the same way every step: which argument is which is part of the program"
)
STATES = Hint(
    "optimizer-states",
    "(inside optimizer.step(): its first step makes the states)",
    "none needed: happens once",
    expected=True,
)
ELSEWHERE = Hint(
    "same-program",
    "(as part of another trace, or with a number of another sign)",
    "none needed: the program is the same",
    expected=True,
)
FIRST_TIME = Hint(
    "first-time",
    "(the first time makes what later steps find)",
    "none needed: happens once",
    expected=True,
)
OPTIMIZER_BRANCH = Hint(
    "optimizer-branch",
    "(optimizer.step() took another branch)",
    "none needed for an optimizer that warms up: it does so once",
)
EARLIER_CUT = Hint(
    "earlier-cut",
    "(a read or mark_step() that other steps do not have)",
    "read values (print, .item()) at the same place of every step, best after its end",
)
LATER_CUT = Hint(
    "later-cut",
    "(other steps are cut here)",
    "read values (print, .item()) at the same place of every step, best after its end",
)
BRANCH = Hint("branch", "(Python took another branch)", "none needed if the branches are few: each is compiled once")
GRADIENTS = Hint(
    "gradients",
    "(gradients are kept alive across the step)",
    "call optimizer.zero_grad() right after optimizer.step(), before anything is read or recorded",
)
KEPT = Hint(
    "kept-alive",
    "",
    "drop it before the step ends (del, or keep only its .item()), or keep it in every step",
)

_TRAINING_OPS = ("dropout", "batch_norm", "rrelu_with_noise")
_TRAINING_FLAGS = ("train", "training")


def of_change(change: ArgumentChange, record: Record, goes_on: bool, varied: bool, named: bool) -> Hint:
    """Return the hint for an argument that differs.

    `goes_on` says that the same size grew by the same amount before, `varied` that a size of this step has changed
    before, and `named` that the tensor belongs to a module or an optimizer.
    """
    if change.code == "shape":
        return _of_shape(change, goes_on, varied, named)
    if change.code == "dtype":
        return DTYPE if isinstance(change.now, wording.TensorArgument) else NUMBER_TYPE
    if change.code == "static-scalar":
        return _of_static(change, record)
    if change.code in SWITCHES.values():
        return SWITCHED
    if change.code == "layout":
        return INDEX if change.was.stride == change.now.stride and change.was.base == change.now.base else STRIDES
    return OTHER_TENSOR


def _of_shape(change: ArgumentChange, goes_on: bool, varied: bool, named: bool) -> Hint:
    dims = change.dims()
    if named and not goes_on:
        return PARAMETER
    if not dims:
        return RANK if isinstance(change.now, wording.TensorArgument) else VARYING
    was, now = change.sizes()
    if goes_on:
        step = now[dims[0]] - was[dims[0]]
        return Hint(
            "growing",
            f"(dimension {dims[0]} grows by {step} from program to program)",
            "allocate it at its full size once and write into it under a mask (a static cache), or pad to a few sizes",
        )
    is_smaller = dims == [0] and now[0] < was[0] and not varied
    return LAST_BATCH if is_smaller and _ends_its_data(change.now) else VARYING


def _ends_its_data(argument: object) -> bool:
    """Return whether a tensor is whole, or a slice that ends where the tensor ends of which it is a view."""
    if not isinstance(argument, wording.TensorArgument):
        return False
    last = argument.offset + sum((n - 1) * stride for n, stride in zip(argument.shape, argument.stride, strict=True))
    return last + 1 == prod(argument.base)


def _of_static(change: ArgumentChange, record: Record) -> Hint:
    if isinstance(change.now, Number):
        return GENERALIZED
    if change.name in _TRAINING_FLAGS:
        return TRAIN_EVAL
    return CHANGING_NUMBER if getattr(change.now, "kind", None) in (int, float, complex) else FLAG


def of_path(
    gone: Sequence[Record], come: Sequence[Record], new: Sequence[Record], same_after: int, nearest_is_first: bool
) -> Hint:
    """Return the hint for records that differ: `gone` are the nearest program's, `come` those in the trace `new`.

    The last `same_after` records of both are equal.
    """
    if come and str(come[0].op) == "lazytpu.box.default":
        return GENERAL_INDEX
    differing = [*gone, *come]
    if differing and all(_in_optimizer(r) for r in differing):
        takes_state = any(r.admitted for r in come)  # states that the first step created
        return STATES if nearest_is_first and takes_state else OPTIMIZER_BRANCH
    if nearest_is_first and gone and _creates(gone[0]) and not (come and _creates(come[0])):
        return FIRST_TIME
    if gone and come and _switches(gone, come):
        return TRAIN_EVAL
    same_before = new[: len(new) - same_after - len(come)]
    if _repeated(gone, same_before) != _repeated(come, same_before):
        return CALLED_AGAIN
    if not (gone and come) and (_trains(gone[:1]) or _trains(come[:1])):
        return TRAIN_EVAL
    if any(r.in_backward for r in gone) and not any(r.in_backward for r in new):
        return EVALUATION
    if same_after or (gone and come):
        return BRANCH
    return LATER_CUT if come else EARLIER_CUT


def of_kept(names: Sequence[str]) -> Hint:
    """Return the hint for results that are still alive, by their names ("" if unnamed)."""
    return GRADIENTS if any(name.endswith(".grad") for name in names) else KEPT


def _switches(gone: Sequence[Record], come: Sequence[Record]) -> bool:
    """Return whether one of two sequences begins with ops of training, and goes on as the other one begins, in the same
    module."""
    more, fewer = (gone, come) if _trains(gone[:1]) else (come, gone)
    if not _trains(more[:1]) or _trains(fewer[:1]):
        return False
    following = next((record for record in more if not _trains([record])), None)
    return following is not None and (following.op, _module(following)) == (fewer[0].op, _module(fewer[0]))


def _module(record: Record) -> str:
    return "" if record.line is None else record.line.module


def _repeated(records: Sequence[Record], before: Sequence[Record]) -> int:
    """Return how many of these records repeat an op of the records `before` on an input that this op was the first to
    use, such as a weight."""
    used = {(record.op, slot) for record in before for slot, *_ in record.admitted if not record.in_backward}
    return sum(
        any((record.op, operand.slot) in used for value in record.arguments.values() for operand in operands(value))
        for record in records
        if not record.in_backward
    )


def _trains(records: Sequence[Record]) -> bool:
    return any(word in wording.op_name(r) for r in records for word in _TRAINING_OPS)


_CREATIONS = ("zeros", "zeros_like", "ones", "full", "full_like", "empty_like", "new_zeros", "new_full", "arange")


def _creates(record: Record) -> bool:
    return wording.op_name(record) in _CREATIONS


def _in_optimizer(record: Record) -> bool:
    """Return whether the user's line calls an optimizer's step()."""
    line = record.line
    return line is not None and not line.backward and ".step(" in linecache.getline(line.file, line.line)
