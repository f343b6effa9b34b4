"""The reason for a program, from a new trace and the nearest earlier program: a code, a sentence, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lazytpu.engine.recompiles import hints, wording
from lazytpu.engine.recompiles.compare import SWITCHES, ArgumentChange, Difference, compare, diff
from lazytpu.trace.trie import Record

CODES: Mapping[str, str] = {
    "first": "no earlier program is like it",
    "new-op": "an op that no earlier program has",
    "new-trace-path": "the same ops in another order, fewer or more of them, or a trace that ends elsewhere",
    "shape": "a tensor or an argument of another size",
    "dtype": "a tensor of another dtype, or a number of another Python type",
    "layout": "a tensor with other strides, or another offset in its storage",
    "static-scalar": "another value of a number, flag or word that is part of the program",
    "default-dtype": "another torch.set_default_dtype",
    "precision": "another torch.set_float32_matmul_precision, or torch.backends.fp32_precision",
    "determinism": "another torch.use_deterministic_algorithms",
    "live-outputs": "a tensor is still alive that no program of this trace returns",
    "donation": "a tensor is still needed whose memory the program of this trace takes",
    "mode": "the same ops, cut differently in another mode",
    "options": "a setting that changes programs",
    "dropped": "the program had been there, and was dropped to bound memory",
    "refused": "a program of this trace was refused, such as one for many sizes",
    "whole": "the collectives of a recurring cut become part of its program (options.collectives = together)",
    "hot-size": "a size that came often by a program for many sizes gets its own",
}
"Every reason code and its meaning."


SERVES_MANY = "none needed: it serves all sizes of its bucket"
SERVES_SOME = "none needed: it serves some sizes of its bucket, and the others get programs of their own"
_EACH_MODE = "none needed: each mode has programs of its own"


@dataclass(frozen=True, slots=True)
class ProgramSetting:
    """The settings that determine a program in addition to its records."""

    mode: str
    options: tuple[str, ...]
    """Options with their values, such as "bounds_check True"."""


@dataclass(frozen=True, slots=True)
class Old:
    """The nearest earlier program: its records, and its live slots and donated inputs."""

    number: int
    records: Sequence[Record]
    live: tuple[int, ...]
    donated: frozenset[int]
    setting: ProgramSetting
    growth: Growth | None
    same_after: int
    """The number of common trailing ops and lines, beyond the leading ones; all if the traces have the same ops and
    lines."""
    same_state: bool
    """Whether it ended at the same state of the trie."""
    is_first: bool
    """Whether it was the first of its kind."""
    varied: bool
    """Whether a size of this step has changed before."""
    refused: str
    """Why there is no program for many sizes of this step; empty if none was refused."""
    otherwise: str | None
    """The fix without this program, if its own compilation was refused or failed; else None."""


@dataclass(frozen=True, slots=True)
class New:
    """The trace that needs a program. `names` returns the names of slots; it walks all modules, so it is only called if
    needed. `uploads` returns the lines at which inputs were uploaded, by slot."""

    records: Sequence[Record]
    live: tuple[int, ...]
    dead: tuple[int, ...]
    setting: ProgramSetting
    names: Callable[[], dict[int, str]]
    uploads: Callable[[], Mapping[int, Any]]


@dataclass(frozen=True, slots=True)
class Growth:
    """A size that changed: the argument, op and line, the dimension, and the increment."""

    site: tuple[Any, ...]
    dim: int
    step: int


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a program. `expected` says that it is part of warming up, or follows a change of the user's
    settings."""

    code: str
    what: str
    fix: str = ""
    note: str = ""
    hint: str = ""
    line: Any = None
    entered: str = ""
    """The line at which the tensor that differs was uploaded; empty if it was not."""
    diff: tuple[str, ...] = ()
    growth: Growth | None = None
    only: str = ""
    """The place of the difference, if the nearest program differs only there."""
    expected: bool = False
    otherwise: str = ""
    """The fix where the program for many sizes that this is the reason of is refused."""


def first(new: New, other_mode: str | None) -> Reason:
    """Return the reason of a trace without a near program. `other_mode` is a mode in which all of its ops ran."""
    record = new.records[0]
    if other_mode is not None:
        what = f"its ops, from {wording.at(record)}, were parts of programs of mode {other_mode}; the mode is now "
        return Reason("mode", what + new.setting.mode, _EACH_MODE, line=record.line, expected=True)
    what = f"no earlier program is like it ({len(new.records):,} ops from {wording.at(record)})"
    return Reason("first", what, "none needed: a new computation is compiled once", line=record.line, expected=True)


def hot_size(what: str, line: Any) -> Reason:
    """Return the reason of an exact program for frequent sizes; `what` describes them."""
    fix = "none needed: it is compiled in the background, once padding has cost as much as that"
    return Reason("hot-size", what, fix, line=line, expected=True)


def whole(line: Any) -> Reason:
    """Return the reason of the program of a cut with all of its collectives. `line` is that of the first one."""
    fix = "none needed: it is compiled in the background, and the cut runs in pieces until then"
    return Reason("whole", "its cut recurred, and its collectives become part of it", fix, line=line, expected=True)


def dropped(what: str, reason: Reason) -> Reason:
    """Return the reason why a program for many sizes is dropped. `reason` is the reason for the exact program."""
    fix = "none needed: each size has a program of its own until one for many sizes is made again"
    return Reason("refused", what, fix, line=reason.line, expected=True)


def for_many_sizes(reason: Reason) -> Reason:
    """Return the reason of a program for many sizes, where `reason` is the reason for an exact one."""
    if reason.code != "shape":
        return reason
    return replace(reason, fix=SERVES_MANY, otherwise=reason.fix)


def of_single_op(reason: Reason, mode: str) -> Reason:
    """Return the reason of the program of a single op, in a mode that runs op by op. Its nearest program is that of
    another op, so that their difference has no cause in the script."""
    fix = f"none needed: mode {mode} compiles each op once for each shape, and later steps compile nothing"
    return replace(reason, fix=fix, hint="", note="", expected=True)


def reason(old: Old, new: New, seen_ops: set[Any]) -> Reason:
    """Return why the program `old` is not compatible with the trace `new`."""
    difference = compare(old.records, new.records, old.same_after)
    if difference is None:
        return _same_records(old, new)
    lines = diff(old.records, new.records, difference)
    if difference.changes:
        return _changed(old, new, difference, lines)
    return _other_path(old, new, difference, lines, seen_ops)


def _changed(old: Old, new: New, difference: Difference, lines: tuple[str, ...]) -> Reason:
    """Return the reason if an argument of a record changed."""
    change, record = difference.changes[0], new.records[difference.index]
    growth = _growth(change, record)
    is_tensor = isinstance(change.now, wording.TensorArgument)
    name = new.names().get(change.now.slot, "") if is_tensor else ""
    entered = new.uploads().get(change.now.slot) if is_tensor and not name else None
    goes_on = growth is not None and _goes_on(growth, old.growth)
    hint = hints.of_change(change, record, goes_on, old.varied, bool(name))
    what = _sentence(change, record, name, "" if entered is None else f"the tensor uploaded at {entered}, ")
    fix = f"{hint.fix}; {old.refused}" if change.code == "shape" and old.refused else hint.fix
    further = {
        (c.position, c.element): c
        for c in difference.changes
        if c.position != change.position or c.element != change.element
    }
    unexplained = sum(not c.pairs() or not c.pairs() <= change.pairs() for c in further.values())
    if unexplained:
        what += f", and {unexplained} more of its arguments differ"
    only = ""
    if not unexplained and old.same_after == len(old.records) == len(new.records):
        only = _only(old, new, difference.index, change.pairs(), "in that size" if further else "there")
    return Reason(
        change.code, what, fix, hint.note, hint.name, record.line, entered or "", lines, growth, only,
        expected=hint.expected,
    )  # fmt: skip


def _sentence(change: ArgumentChange, record: Record, named: str, entered: str) -> str:
    """Return a sentence about a changed argument, the tensor `named` so, or `entered` so."""
    if change.code in SWITCHES.values():
        return f"torch's {change.name}, for {wording.at(record)}, was {change.was!r}, is {change.now!r}"
    if change.position == 0:
        return f"an input {change.name} of {wording.at(record)} was {change.was}, is {change.now}"
    was, now = _pair(change)
    name = f"`{change.name}`" if change.element is None else f"`{change.name}`[{change.element - 1}]"
    name += f", {named}" if named else ""
    comma = "," if entered else ""
    return f"{entered}argument {change.position} ({name}) of {wording.at(record)}{comma} was {was}, is {now}"


def _pair(change: ArgumentChange) -> tuple[str, str]:
    was, now = change.was, change.now
    if isinstance(was, wording.TensorArgument) and isinstance(now, wording.TensorArgument):
        if change.code == "layout":
            return _laid_out(was), _laid_out(now)
        if change.code == "new-trace-path":
            return f"%{was.slot}, {was}", f"another tensor, %{now.slot}"
    return _plain(was), _plain(now)


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, wording.TensorArgument) else wording.text_of(value)


def _laid_out(tensor: wording.TensorArgument) -> str:
    where = f" at {tensor.offset} of {list(tensor.base)}" if tensor.offset or tensor.base != tensor.shape else ""
    return f"{tensor} with strides {list(tensor.stride)}{where}"


def _only(old: Old, new: New, index: int, sizes: set[tuple[int, int]], only: str) -> str:
    """Return where else traces of the same ops and lines differ: `only` if nowhere, "in that size" if only in inputs of
    that size, else ""."""
    for before, after in zip(old.records[index + 1 :], new.records[index + 1 :], strict=True):
        if before is after or not (before.admitted or after.admitted):
            continue
        if [(o.key, e) for _, o, e in before.admitted] != [(o.key, e) for _, o, e in after.admitted]:
            if not sizes or not _differ_in(sizes, before, after):
                return ""
            only = "in that size"
    return only


def _differ_in(sizes: set[tuple[int, int]], before: Record, after: Record) -> bool:
    """Return whether the inputs that two records are the first to read differ only in these (old, new) sizes."""
    pairs = list(zip(before.admitted, after.admitted, strict=False))
    return len(before.admitted) == len(after.admitted) and all(
        (a.dtype, len(a.shape), a_empty) == (b.dtype, len(b.shape), b_empty)
        and sizes.issuperset(pair for pair in zip(a.shape, b.shape, strict=True) if pair[0] != pair[1])
        for (_, a, a_empty), (_, b, b_empty) in pairs
    )


def _growth(change: ArgumentChange, record: Record) -> Growth | None:
    dims = change.dims()
    if change.code != "shape" or len(dims) != 1:
        return None
    was, now = change.sizes()
    site = (record.op, record.line, change.name, change.element)
    return Growth(site, dims[0], now[dims[0]] - was[dims[0]])


def _goes_on(growth: Growth, before: Growth | None) -> bool:
    """Return whether a size grew by the same amount before."""
    return before is not None and growth.step > 0 and growth == before


def _other_path(old: Old, new: New, difference: Difference, lines: tuple[str, ...], seen_ops: set[Any]) -> Reason:
    """Return the reason if the ops differ."""
    i, after = difference.index, difference.same_after
    gone, come = old.records[i : len(old.records) - after], new.records[i : len(new.records) - after]
    hint = hints.of_path(gone, come, new.records, after, old.is_first)
    novel = next((r for r in come if r.op not in seen_ops), None)
    if novel is not None and hint not in (hints.TRAIN_EVAL, hints.EVALUATION):
        what = f"{wording.at(novel)} is an op that no earlier program has"
        return Reason("new-op", what, hint.fix, hint.note, hint.name, novel.line, "", lines, expected=hint.expected)
    if i == len(new.records):
        what = f"the trace ends after {wording.at(new.records[-1])}, where program #{old.number} goes on with "
        what += wording.at(old.records[i])
        line = new.records[-1].line
    elif i == len(old.records):
        what = f"the trace goes on with {wording.at(new.records[i])}, where program #{old.number} ends"
        line = new.records[i].line
    else:
        what = f"{wording.at(new.records[i])} follows, where program #{old.number} has {wording.at(old.records[i])}"
        line = new.records[i].line
    return Reason("new-trace-path", what, hint.fix, hint.note, hint.name, line, "", lines, expected=hint.expected)


def _same_records(old: Old, new: New) -> Reason:
    """Return the reason if the traces are the same: other results, other donated inputs, or other settings."""
    extra = [slot for slot in new.live if slot not in old.live]
    if extra:
        return _kept_alive(old, new, extra)
    taken = sorted(old.donated - set(new.dead))
    if taken:
        return _still_needed(old, new, taken)
    changed = [(a, b) for a, b in zip(old.setting.options, new.setting.options, strict=True) if a != b]
    if changed:
        what = ", ".join(f"`{was}` is now `{now}`" for was, now in changed)
        return Reason("options", what, "none needed: each setting has programs of its own", expected=True)
    if old.setting.mode != new.setting.mode:
        what = f"the mode was {old.setting.mode}, is {new.setting.mode}"
        return Reason("mode", what, _EACH_MODE, expected=True)
    if old.otherwise is not None:
        why = old.refused or f"program #{old.number} failed to compile"
        what, line = f"its sizes get a program of their own, since {why}", new.records[0].line
        return Reason("refused", what, old.otherwise, line=line, expected=True)
    if not old.same_state:
        hint = hints.ELSEWHERE
        what = f"the ops of program #{old.number} were recorded another way"
        return Reason("new-trace-path", what, hint.fix, hint.note, hint.name, new.records[0].line, expected=True)
    what = f"program #{old.number} was the same, and was dropped to bound the memory of traces"
    return Reason("dropped", what, "fewer different traces", expected=True)


def _kept_alive(old: Old, new: New, extra: list[int]) -> Reason:
    """Return the reason if more results are alive."""
    makers = _makers(new.records)
    slot_layouts = wording.layouts(new.records)
    names = new.names()
    record = makers.get(extra[0])
    what = _tensor_of(extra[0], slot_layouts, names, record)
    if len(extra) > 1:
        what += f" and {len(extra) - 1:,} more are"
    else:
        what += " is"
    what += f" still alive where the trace ends, and no result of the nearest program #{old.number}"
    hint = hints.of_kept([names.get(slot, "") for slot in extra])
    lines = tuple(f"+ result {_tensor_of(slot, slot_layouts, names, makers.get(slot))}" for slot in extra[:8])
    line = None if record is None else record.line
    return Reason("live-outputs", what, hint.fix, hint.note, hint.name, line, "", lines)


def _still_needed(old: Old, new: New, taken: list[int]) -> Reason:
    """Return the reason if donated inputs are still in use."""
    inputs = [(slot, record) for record in new.records for slot, _, empty in record.admitted if not empty]
    slot_layouts, names = wording.layouts(new.records), new.names()
    slot, record = inputs[taken[0]]
    named = f" ({names[slot]})" if slot in names else ""
    what = (
        f"the input {wording.array(slot_layouts[slot].dtype, slot_layouts[slot].shape)}{named} of {wording.at(record)}"
    )
    what += f" is still needed after the trace, and the nearest program #{old.number} takes its memory"
    fix = "drop the other reference to the old value before the step ends, or keep a clone() on the CPU"
    lines = tuple(
        f"- takes input {wording.array(slot_layouts[inputs[i][0]].dtype, slot_layouts[inputs[i][0]].shape)}"
        for i in taken
    )
    return Reason("donation", what, fix, "(a tensor that is overwritten is kept)", "", record.line, "", lines)


def _makers(records: Sequence[Record]) -> dict[int, Record]:
    makers: dict[int, Record] = {}
    for record in records:
        for slots in (record.out_slots, *record.written.values(), [s for s, _, _ in record.admitted]):
            makers.update(dict.fromkeys(slots, record))
    return makers


def _tensor_of(slot: int, known: Mapping[int, Any], names: Mapping[int, str], maker: Record | None) -> str:
    text = wording.array(known[slot].dtype, known[slot].shape)
    if slot in names:
        text += f" {names[slot]}"
    return text if maker is None else f"{text}, the result of {wording.at(maker)},"


def sentence(reason: Reason, nearest: int | None) -> str:
    """Return the whole message: the difference, the hint, the nearest program, and the fix."""
    text = f"{reason.what} {reason.note}".rstrip()
    if nearest is not None and reason.only:
        text += f"; nearest program #{nearest} differs only {reason.only}"
    elif nearest is not None and f"#{nearest}" not in reason.what and reason.code != "refused":  # it has this number
        text += f"; nearest program is #{nearest}"
    return text + (f"; fix: {reason.fix}" if reason.fix else "")
