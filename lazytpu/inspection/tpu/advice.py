"""Advice on how users can make a program faster or smaller, each with a line, a fix and a gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.module import MatrixProduct
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.schedule import Cost
from lazytpu.inspection.tpu.work import is_copy

LANES = 128
ONE_PASS = 0.45
"""The part of a float32 product's time that one pass of bfloat16 saves, compared with six: 11.8 against 21.2 us for
1024^3 in the compiler's simulation for v6e."""
PAST = 16
"Maximum elements past a multiple of 128 that count as a size just above a tile."
SMALL = 1 << 16
"Minimum bytes of a result that advice is given for."
WORTH = 0.01
"Minimum share of the run that the new advice on whole classes of ops is given for."


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem (`text`) at a line, a `fix`, and its maximum gain: `seconds` of a run, None if nobody measured it, and
    `bytes` of memory. `code` is a key of `RULES`."""

    code: str
    text: str
    fix: str
    line: ProgramLine | None = None
    seconds: float | None = None
    bytes: int = 0


def advise(report: ProgramReport) -> list[Advice]:
    """Return all advice for a program, largest gain first."""
    advice = [Advice(code, *fields) for code, rule in RULES.items() for fields in rule(report)]
    return sorted(advice, key=lambda entry: (-(entry.seconds or 0.0), -entry.bytes))


Found = Iterator[tuple[str, str, ProgramLine | None, float | None, int]]
Rule = Callable[[ProgramReport], Found]


def _time_of(report: ProgramReport, products: Sequence[MatrixProduct]) -> float:
    """Return the seconds of the ops that compute these products and are bound by the matrix unit."""
    keys = {(product.line, product.flops) for product in products}
    return sum(
        cost.seconds
        for cost in report.costs
        if cost.bound == "matrix unit" and any((line, cost.work.flops) in keys for line in report.lines(cost.op))
    )


def _costliest_line(report: ProgramReport, products: Sequence[MatrixProduct]) -> ProgramLine | None:
    lines = [product for product in products if product.line is not None]
    return max(lines, key=lambda product: product.flops).line if lines else None


def _saved(report: ProgramReport, products: Sequence[MatrixProduct], filled: Callable[[MatrixProduct], float]) -> float:
    """Return the seconds that products at these lines, in these modules, waste if they fill only a part of the matrix
    unit. A time that is bound by HBM is not theirs."""
    parts: dict[tuple[ProgramLine, str], float] = {}
    for line, part in ((product.line, filled(product)) for product in products):
        if line is not None:
            parts[line, line.module] = min(part, parts.get((line, line.module), 1.0))
    costs = [cost for cost in report.costs if cost.work.matrix and cost.bound != "HBM"]
    lines = [(line, cost.seconds) for cost in costs if (line := report.line(cost.op)) is not None]
    return sum(seconds * (1 - parts.get((line, line.module), 1.0)) for line, seconds in lines)


def _narrow_channels(report: ProgramReport) -> Found:
    """Layers with few channels: 16 of them fill an eighth of the lanes, and of the columns of the matrix unit."""

    def narrow(product: MatrixProduct) -> int:
        return min(product.depth, product.columns)

    products = [p for p in report.module.products if p.batch == 1 and 1 < narrow(p) < LANES and p.rows > 1]
    if products:
        sizes = Counter(map(narrow, products)).most_common(4)
        counts = ", ".join(f"{count} have {size}" for size, count in sizes)
        yield (
            f"{len(products)} products and convolutions have few channels ({counts}), which fill as many of {LANES} "
            f"lanes and of the matrix unit's {report.facts.matrix_unit} columns",
            f"wider and fewer layers: {LANES} channels take about the time of {sizes[0][0]}",
            _costliest_line(report, products),
            _saved(report, products, lambda product: narrow(product) / LANES),
            0,
        )


def _small_batch(report: ProgramReport) -> Found:
    """Products with few rows: the matrix unit loads the weights for few examples."""
    products = [p for p in report.module.products if p.batch == 1 and 1 <= p.rows < LANES <= min(p.depth, p.columns)]
    if products:
        rows = min(product.rows for product in products)
        yield (
            f"{len(products)} products have {rows} rows or more, fewer than {LANES}: more rows take the same time",
            f"a larger batch (or several sequences together): {LANES} rows take about the time of {rows}",
            _costliest_line(report, products),
            _saved(report, products, lambda product: product.rows / LANES),
            0,
        )


def _of_class(select: Callable[[ProgramReport], list[Cost]], text: str, fix: str) -> Rule:
    """Return the rule for a class of ops, which would save their time, if this is a noticeable part of the run. `{}` in
    the text is their number."""

    def rule(report: ProgramReport) -> Found:
        costs = select(report)
        seconds = sum(cost.seconds for cost in costs)
        if seconds > WORTH * report.seconds:
            line = next((line for cost in costs if (line := report.line(cost.op)) is not None), None)
            yield text.format(len(costs)), fix, line, seconds, 0

    return rule


def _bound_by(report: ProgramReport, bound: str) -> list[Cost]:
    """Return the ops on the core that are bound by this, without transfers and collectives, most expensive first."""
    return [cost for cost in report.costs if cost.kind == "compute" and cost.bound == bound]


_small_ops = _of_class(
    lambda report: _bound_by(report, "latency"),
    "{} ops are too small to fill the chip and only take their least time",
    "more work per op: a larger batch, wider layers, or tensors of one shape stacked and computed at once",
)
"Ops too small to fill the chip: each takes at least `schedule.LEAST` cycles."

_idle_matrix_unit = _of_class(
    lambda report: _bound_by(report, "vector unit"),
    "the matrix unit is idle while {} ops other than products compute",
    "cheaper elementwise functions (GELU by tanh, ReLU), bfloat16, fewer normalisations, a fused optimizer",
)
"Arithmetic other than products: the matrix unit is idle meanwhile."

_layout_copies = _of_class(
    lambda report: [cost for cost in report.costs if cost.kind == "compute" and is_copy(report.hlo, cost.op)],
    "{} ops only copy or transpose values into another layout",
    "keep one order of dimensions from op to op: no permute() or contiguous() in between, channels_last for "
    "convolutions, (batch, tokens, features) for attention",
)
"Copies and transposes that only change the order of elements."


def _memory_bound_chain(report: ProgramReport) -> Found:
    """Values that one op bound by HBM writes and another one reads: fused, they would not be moved."""
    moving = {cost.op.name: cost for cost in _bound_by(report, "HBM") if not is_copy(report.hlo, cost.op)}
    passed: dict[str, int] = {}
    for name, cost in moving.items():
        readers = sum(user.name in moving for user, _ in report.hlo.entry.users.get(name, ()))
        size = sum(array.hbm_bytes for array in cost.op.results)
        if readers and size and name in report.hlo.entry.by_name:
            passed[name] = size * (1 + readers)
    seconds = sum(passed.values()) / report.facts.device_hbm_bandwidth
    if seconds > WORTH * report.seconds:
        largest = max(passed, key=passed.__getitem__)
        yield (
            f"{len(passed)} values of {sum(passed.values()):,} bytes go through HBM between ops that HBM bounds",
            "bfloat16 for activations halves this; compute reductions of one tensor (mean, variance, norm) together, "
            "and leave out reshapes between elementwise ops, so that they can be one kernel",
            report.line(moving[largest].op),
            seconds,
            0,
        )


def _padding(report: ProgramReport) -> Found:
    """Bytes of padding that ops bound by HBM move: minor dimensions that do not fill 128 lanes."""
    wasted, line = 0.0, None
    for cost in _bound_by(report, "HBM"):
        operands = [op for name in cost.op.operands if (op := report.hlo.entry.by_name.get(name)) is not None]
        arrays = [array for op in (*operands, cost.op) for array in op.results]
        padded = sum(array.hbm_bytes for array in arrays)
        useful = sum(array.bytes for array in arrays if array.hbm_bytes)
        saved = cost.seconds * (1 - useful / padded) if padded else 0.0
        line = report.line(cost.op) if line is None and saved else line
        wasted += saved
    if wasted > WORTH * report.seconds:
        entry = report.padded[0]
        yield (
            f"{sum(entry.wasted for entry in report.padded):,} bytes of arrays are padding, which is moved with them: "
            f"{entry.array} is {entry.share:.0%} padding",
            f"a last dimension of a multiple of {LANES} (channels, features, classes)",
            line,
            wasted,
            sum(entry.wasted for entry in report.padded if entry.argument),
        )


def _host_bound(report: ProgramReport) -> Found:
    """A step that the host records for longer than the device computes."""
    if report.host_seconds > report.seconds and report.complete:
        host = f"{1e3 * report.host_seconds:,.1f} ms of this machine's CPU"
        yield (
            f"the host needs {host} to record {report.records:,} ops, longer than the device computes",
            "a larger batch, torch.compile (one record for a graph), optimizers with fused=True or foreach=True",
            None,
            report.host_seconds - report.seconds,
            0,
        )


def _narrow_heads(report: ProgramReport) -> Found:
    """Attention with heads of 64 or 80: arrays fill half of the lanes, and products half of the matrix unit."""
    by_head: dict[int, list[MatrixProduct]] = {}
    for product in report.module.products:
        head = min(product.depth, product.columns)
        if product.batch > 1 and 16 <= head < LANES and product.rows >= head < max(product.depth, product.columns):
            by_head.setdefault(head, []).append(product)
    for head, products in by_head.items():
        unit = report.facts.matrix_unit
        yield (
            f"{len(products)} batched products have heads of {head}: they fill {head} of {LANES} lanes and of the "
            f"matrix unit's {unit} rows",
            f"fewer heads of {LANES} (or {2 * LANES}) cost the same parameters",
            _costliest_line(report, products),
            _time_of(report, products) * (1 - head / LANES),
            0,
        )


def _past_a_tile(report: ProgramReport) -> Found:
    """Sizes such as 1025, which take the time and memory of 1152."""
    by_size: dict[int, list[MatrixProduct]] = {}
    for product in report.module.products:
        for size in {product.rows, product.depth, product.columns}:
            if size > LANES and 0 < size % LANES <= PAST:
                by_size.setdefault(size, []).append(product)
    for size, products in by_size.items():
        tile = -(-size // LANES) * LANES
        yield (
            f"{len(products)} products have a size of {size}, {size % LANES} past a multiple of {LANES}: they are "
            f"computed as {tile}",
            f"use {tile - LANES}, or all of {tile}",
            _costliest_line(report, products),
            _time_of(report, products) * (1 - size / tile),
            0,
        )


def _float32_products(report: ProgramReport) -> Found:
    """Float32 products at full precision: six passes of the matrix unit, which multiplies bfloat16."""
    for precision, passes in (("HIGHEST", 6), ("HIGH", 3)):
        products = [p for p in report.module.products if p.precision == precision and p.left.dtype == "f32"]
        if products:
            yield (
                f"{len(products)} float32 products take {passes} passes of the matrix unit each",
                'torch.autocast("tpu", torch.bfloat16), or torch.set_float32_matmul_precision("medium") for one pass',
                _costliest_line(report, products),
                _time_of(report, products) * ONE_PASS * (passes - 1) / 5,
                0,
            )


def _held_values(report: ProgramReport) -> Found:
    """Results that are neither parameters, states nor overwritten tensors: Python holds them, so they need memory."""
    overwriting = {argument.alias for argument in report.module.arguments}
    for place, result in enumerate(report.module.results):
        free = result.name is None and place not in overwriting and result.line is not None
        if free and result.type.bytes >= SMALL:
            yield (
                f"{result.type} is held by Python when the step ends: it is written to memory and not fused away",
                "drop it (del, or do not append it to a list), or keep a smaller value such as its mean",
                result.line,
                result.type.bytes / report.facts.device_hbm_bandwidth,
                result.type.bytes,
            )


def _held_gradients(report: ProgramReport) -> Found:
    """Gradients that outlive the step although the next one clears them first."""
    gradients = [result for result in report.module.results if (result.name or "").endswith(".grad")]
    size = sum(result.type.bytes for result in gradients)
    if gradients:
        yield (
            f"{len(gradients)} gradients are alive when the step ends and are written to memory",
            "optimizer.zero_grad() directly after optimizer.step(), before the step ends",
            gradients[0].line,
            size / report.facts.device_hbm_bandwidth,
            size,
        )


def _not_donated(report: ProgramReport) -> Found:
    """Parameters and states whose new value cannot reuse the memory of the old one."""
    results = {value.name: value for value in report.module.results if value.name}
    updates = [value for value in report.module.arguments if not value.overwritten and value.name in results]
    if updates:
        line = next(value.line for value in report.module.results if value.name == updates[0].name)
        size = sum(value.type.bytes for value in updates)
        yield (
            f"{len(updates)} updates, of {updates[0].name} first, cannot take the old value's memory: "
            "something holds it",
            "drop references that share it (a detach() or view that is kept, an exported array)",
            line,
            None,
            size,
        )


def _exposed_collectives(report: ProgramReport) -> Found:
    """Collectives that the core has to wait for."""
    waited = [cost for cost in report.collectives if cost.waited > 0.01 * report.seconds]
    if waited:
        yield (
            f"the core waits for {len(waited)} collectives, longest for {waited[0].collective} of "
            f"{waited[0].payload:,} bytes",
            "smaller buckets, started as soon as their gradients are ready; fewer bytes (bfloat16, reduce-scatter)",
            report.line(waited[0].op),
            sum(cost.waited for cost in waited),
            0,
        )


def _too_large(report: ProgramReport) -> Found:
    """A program that does not fit the chip's memory."""
    memory = report.memory
    if not memory.fits:
        over = memory.total.peak + memory.total.code - memory.capacity
        largest = memory.temporaries[0] if memory.temporaries else None
        yield (
            f"the program needs {memory.total.peak:,} bytes, and a device has {memory.capacity:,}",
            "a smaller batch, torch.utils.checkpoint around the layers, bfloat16, or more chips",
            largest.line if largest else None,
            None,
            over,
        )


RULES: dict[str, Rule] = {
    "does-not-fit": _too_large,
    "narrow-heads": _narrow_heads,
    "past-a-tile": _past_a_tile,
    "float32-products": _float32_products,
    "narrow-channels": _narrow_channels,
    "small-batch": _small_batch,
    "small-ops": _small_ops,
    "idle-matrix-unit": _idle_matrix_unit,
    "memory-bound-chain": _memory_bound_chain,
    "padding": _padding,
    "layout-copies": _layout_copies,
    "host-bound": _host_bound,
    "held-value": _held_values,
    "held-gradients": _held_gradients,
    "not-donated": _not_donated,
    "exposed-collectives": _exposed_collectives,
}
"Code of the advice -> rule."
