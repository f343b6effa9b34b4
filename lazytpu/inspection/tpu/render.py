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

from lazytpu.inspection.highlight import table
from lazytpu.inspection.tpu.advice import advise
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.padding import Padded
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.schedule import Cost
from lazytpu.inspection.units import size, us

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
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), Text(text))
    title = f"{report.name} on {report.program.topology}, {report.devices} device{'s' if report.devices > 1 else ''}"
    return Panel(grid, title=Text(title, style="bold"), title_align="left")


def _lines(report: ProgramReport) -> Table:
    rows: list[tuple[str | Text, ...]] = []
    for line, costs in list(report.by_line.items())[:LINES]:
        seconds = sum(cost.seconds for cost in costs)
        location = Text("(added by the compiler)", style="dim") if line is None else located(line, longest=70)
        rows.append((us(seconds), _share(seconds, report), f"{len(costs):,}", location))
    return table(("time", "share", "ops", "line"), rows, left=("line",), widths=(9, 5, 6))


def _modules(report: ProgramReport) -> Table:
    """Return the most expensive modules with all that they contain, in the order of their tree."""
    shown = set(map(id, sorted(report.modules, key=lambda module: -module.seconds)[:MODULES]))
    rows = [
        (us(m.seconds), _share(m.seconds, report), us(m.forward), us(m.backward), f"{'  ' * m.depth}{m.path}")
        for m in report.modules
        if id(m) in shown
    ]
    return table(("time", "share", "forward", "backward", "module"), rows, left=("module",), widths=(9, 9, 9, 9))


def _ops(report: ProgramReport) -> Table:
    rows, omitted = [_op(report, cost) for cost in report.costs[:OPS]], report.costs[OPS:]
    if omitted:
        seconds, more = sum(cost.seconds for cost in omitted), Text(f"{len(omitted):,} more", style="dim")
        rows.append((us(seconds), _share(seconds, report), "", "", "", "", more))
    columns = "time", "share", "bound by", "unit", "moved", "line", "op"
    made = table(columns, rows, left=("bound by", "line", "op"), widths=(9, 5, 11, 4, 8, 0, 24))
    made.columns[5].max_width = 42
    for column in made.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    return made


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
    columns = "collective", "bytes", "takes", "waited for", "line"
    rows = [
        (
            cost.collective or "", size(cost.payload), us(cost.beside or cost.seconds),
            us(cost.waited) if cost.waited else "hidden", located(report.line(cost.op)),
        )
        for cost in report.collectives[:OPS]
    ]  # fmt: skip
    return table(columns, rows, left=columns)


def _padding(report: ProgramReport) -> Table:
    columns = "array", "padding", "wasted", "line or argument"
    listed = [entry for entry in report.padded if _worth_listing(entry)][:5]
    origins = [Text(entry.argument) if entry.argument else located(entry.line) for entry in listed]
    rows = [(str(e.array), f"{e.share:.0%}", size(e.wasted), origin) for e, origin in zip(listed, origins)]
    made, total = table(columns, rows, left=columns), sum(entry.wasted for entry in report.padded)
    made.caption, made.caption_justify = f"{size(total)} of padding in all arrays together", "left"
    return made


def _worth_listing(entry: Padded) -> bool:
    return entry.wasted >= 4096 and entry.share >= 0.01


def _advice(report: ProgramReport) -> Group:
    entries: list[Text] = []
    for entry in advise(report):
        gains = [f"up to {us(entry.seconds)}"] if entry.seconds else []
        gains += [size(entry.bytes)] if entry.bytes else []
        text = Text("* ", style="yellow")
        text.append(entry.text, style="bold")
        if entry.line is not None:
            text.append(f"\n  at {entry.line}{_source(entry.line)}", style="cyan")
        text.append(f"\n  {entry.fix}" + (f" (saves {', '.join(gains)})" if gains else ""), style="")
        entries.append(text)
    return Group(*(entries or [Text("nothing to advise", style="dim")]))


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
