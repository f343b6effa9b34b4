"""Reports as text for a terminal: the most expensive ops with their lines, memory, collectives, padding, advice."""

from __future__ import annotations

import io
import linecache
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lazytpu.inspection.highlight import PlainTable
from lazytpu.inspection.tpu.advice import advise
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.padding import Padded
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.schedule import Cost

OPS, LINES, MODULES = 10, 8, 12
"The number of ops, lines and modules shown."
WIDTH = 120  # columns: those of the project's own lines


def as_text(programs: Sequence[ProgramReport]) -> str:
    """Return the report of a step, by its programs, as plain text, `WIDTH` columns wide."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, no_color=True, highlight=False, emoji=False).print(rendered(programs))
    return out.getvalue()


def rendered(programs: Sequence[ProgramReport]) -> Group:
    """Return the report of a step, by its programs, for a rich console."""
    sections: list[Any] = []
    if len(programs) > 1:
        least = "" if all(program.complete for program in programs) else "at least "
        seconds = sum(program.seconds for program in programs)
        sections.append(Text(f"{len(programs)} programs, {least}{us(seconds)} per step", style="bold"))
    for program in programs:
        sections += _program(program)
    return Group(*sections)


def _program(report: ProgramReport) -> Iterator[Any]:
    yield _summary(report)
    yield _lines(report)
    yield _ops(report)
    if report.modules:
        yield _modules(report)
    if report.collectives:
        yield _collectives(report)
    if any(_worth_listing(entry) for entry in report.padded):
        yield _padding(report)
    yield _advice(report)


def _summary(report: ProgramReport) -> Panel:
    facts, memory = report.facts, report.memory
    by_flops, by_bytes = report.roofline
    total, limit = memory.total, max(by_flops, by_bytes)
    tera, giga = facts.device_flops / 1e12, facts.device_hbm_bandwidth / 1e9
    bottleneck = "the matrix unit" if by_flops >= by_bytes else "HBM"
    time, used = f"at least {us(report.seconds)} on one device", f"peak {tera:,.0f} TFLOP/s"
    moved = f"at least {us(by_bytes)} at {giga:,.0f} GB/s"
    if report.complete:
        moved = f"{report.bandwidth_share:.1%} of {giga:,.0f} GB/s"
        of_limit = f", {report.seconds / limit:.1f} times the ceiling of {us(limit)} by {bottleneck}" if limit else ""
        time = f"{us(report.seconds)} on one device{of_limit}"
        used = f"{report.utilisation:.2%} of {tera:,.0f} TFLOP/s"
    rows = [
        ("estimated time", time),
        ("matrix unit", f"{report.flops / 1e9:,.2f} GFLOP, {used}"),
        ("HBM traffic", f"{size(report.hbm_bytes)}, {moved}"),
        (
            "memory",
            f"{size(total.peak)} at most of {size(memory.capacity)}{'' if memory.fits else ': DOES NOT FIT'} "
            f"(arguments {size(total.arguments)}, results beside them {size(total.outputs - total.aliased)}, "
            f"temporaries {size(total.temporaries)})",
        ),
        ("compiled", "from the cache" if report.program.cached else f"in {report.program.seconds:.1f} s"),
    ]
    if report.collectives:
        rows.insert(3, ("waiting for chips", f"{us(report.exposed)}, in {len(report.collectives)} collectives"))
    if report.kernels:
        seconds = sum(cost.seconds for cost in report.kernels)
        rows.append(
            ("kernels", f"{us(seconds)} in {len(report.kernels)}, by their own cost estimates at the chip's peaks")
        )
    if report.unknown:
        names = ", ".join(sorted({cost.op.target for cost in report.unknown}))
        rows.append(
            ("unknown time", f"{len(report.unknown)} calls of {names} say not how long they take, and are left out")
        )
    if report.schedule.unknown:
        rows.append(("loops", f"{len(report.schedule.unknown)} of unknown length are counted once"))
    rows += [("passes", note) for note in report.notes]
    table = Table.grid(padding=(0, 2))
    for name, text in rows:
        table.add_row(Text(name, style="bold"), Text(text))
    title = f"{report.name} on {report.program.topology}, {report.devices} device{'s' if report.devices > 1 else ''}"
    return Panel(table, title=Text(title, style="bold"), title_align="left")


def _lines(report: ProgramReport) -> Table:
    table = PlainTable("time", "share", "ops", "line", box=None, pad_edge=False)
    for column, width in ((0, 9), (1, 5), (2, 6)):
        table.columns[column].min_width, table.columns[column].justify = width, "right"
    for line, costs in list(report.by_line.items())[:LINES]:
        seconds = sum(cost.seconds for cost in costs)
        location = Text("(added by the compiler)", style="dim") if line is None else located(line, longest=70)
        table.add_row(us(seconds), _share(seconds, report), f"{len(costs):,}", location)
    return table


def _modules(report: ProgramReport) -> Table:
    """Return the most expensive modules with all that they contain, in the order of their tree."""
    shown = set(map(id, sorted(report.modules, key=lambda module: -module.seconds)[:MODULES]))
    table = PlainTable("time", "share", "forward", "backward", "module", box=None, pad_edge=False)
    for column in table.columns[:4]:
        column.min_width, column.justify = 9, "right"
    for module in report.modules:
        if id(module) in shown:
            times = [us(seconds) for seconds in (module.seconds, module.forward, module.backward)]
            table.add_row(times[0], _share(module.seconds, report), *times[1:], f"{'  ' * module.depth}{module.path}")
    return table


def _ops(report: ProgramReport) -> Table:
    table = PlainTable("time", "share", "bound by", "unit", "moved", "line", "op", box=None, pad_edge=False)
    for column, width in ((0, 9), (1, 5), (2, 11), (3, 4), (4, 8)):
        table.columns[column].min_width = width
        table.columns[column].justify = "left" if column == 2 else "right"
    table.columns[5].max_width, table.columns[6].min_width = 42, 24
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    shown = report.costs[:OPS]
    for cost in shown:
        table.add_row(*_op(report, cost))
    omitted = report.costs[OPS:]
    if omitted:
        seconds = sum(cost.seconds for cost in omitted)
        table.add_row(us(seconds), _share(seconds, report), "", "", "", "", Text(f"{len(omitted):,} more", style="dim"))
    return table


def _op(report: ProgramReport, cost: Cost) -> tuple[Any, ...]:
    seconds, peak = max(cost.seconds, 1e-12), report.facts.device_flops
    unit = f"{cost.flops / seconds / peak:.0%}" if cost.flops and not cost.unknown else ""
    runs = f" x{cost.runs:,}" if cost.runs > 1 else ""
    lines = report.lines(cost.op)
    suffix = f" +{len(lines) - 1}" if len(lines) > 1 else ""
    result = ", ".join(map(str, cost.op.results[:1])) + (", ..." if len(cost.op.results) > 1 else "")
    return (
        "unknown" if cost.unknown else us(cost.seconds),
        "" if cost.unknown else _share(cost.seconds, report),
        cost.bound if cost.kind == "compute" else cost.kind,
        unit,
        size(cost.hbm_bytes) if cost.hbm_bytes else "",
        located(lines[0] if lines else None, suffix),
        Text(f"{cost.op.name}{runs} {_about(report, cost) or result}", style="dim"),
    )


def _about(report: ProgramReport, cost: Cost) -> str | None:
    """Return the name of the argument that a transfer moves, or None."""
    operand = (
        report.hlo.entry.by_name.get(cost.op.operands[0]) if cost.kind == "transfer" and cost.op.operands else None
    )
    return report.hlo.named(operand) if operand is not None and operand.opcode == "parameter" else None


def _collectives(report: ProgramReport) -> Table:
    table = PlainTable("collective", "bytes", "takes", "waited for", "line", box=None, pad_edge=False)
    for cost in report.collectives[:OPS]:
        hidden = "hidden" if cost.waited == 0 else us(cost.waited)
        line = located(report.line(cost.op))
        table.add_row(cost.collective or "", size(cost.payload), us(cost.beside or cost.seconds), hidden, line)
    return table


def _padding(report: ProgramReport) -> Table:
    total = sum(entry.wasted for entry in report.padded)
    table = PlainTable("array", "padding", "wasted", "line or argument", box=None, pad_edge=False)
    for entry in [entry for entry in report.padded if _worth_listing(entry)][:5]:
        origin = Text(entry.argument) if entry.argument else located(entry.line)
        table.add_row(str(entry.array), f"{entry.share:.0%}", size(entry.wasted), origin)
    table.caption, table.caption_justify = f"{size(total)} of padding in all arrays together", "left"
    return table


def _worth_listing(entry: Padded) -> bool:
    return entry.wasted >= 4096 and entry.share >= 0.01


def _advice(report: ProgramReport) -> Group:
    advice = advise(report)
    if not advice:
        return Group(Text("nothing to advise", style="dim"))
    entries: list[Any] = []
    for entry in advice:
        gains = [f"up to {us(entry.seconds)}"] if entry.seconds else []
        gains += [size(entry.bytes)] if entry.bytes else []
        text = Text("* ", style="yellow")
        text.append(entry.text, style="bold")
        if entry.line is not None:
            text.append(f"\n  at {entry.line}{_source(entry.line)}", style="cyan")
        text.append(f"\n  {entry.fix}" + (f" (saves {', '.join(gains)})" if gains else ""), style="")
        entries.append(text)
    return Group(*entries)


def located(line: ProgramLine | None, more: str = "", longest: int = 28) -> Text:
    """Return a line with up to `longest` characters of its source text, if that is available."""
    if line is None:
        return Text("")
    text = Text(f"{line}{more}", style="cyan")
    text.append(_source(line, longest), style="")
    return text


def _source(line: ProgramLine, longest: int = 80) -> str:
    text = linecache.getline(line.file, line.line).strip()
    return f"  {text[: longest - 3]}..." if len(text) > longest else f"  {text}" if text else ""


def _share(seconds: float, report: ProgramReport) -> str:
    return f"{seconds / report.seconds:.0%}" if report.seconds and report.complete else ""


def us(seconds: float) -> str:
    """Format a time in microseconds up to 10 ms, then in milliseconds."""
    return f"{1e6 * seconds:,.1f} us" if seconds < 1e-2 else f"{1e3 * seconds:,.1f} ms"


def size(count: float) -> str:
    """Format bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 10_000:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
