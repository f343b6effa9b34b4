"""Advice on how users can make a program faster or smaller, each with a line, a fix and a gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.module import MatrixProduct
from lazytpu.inspection.tpu.program import ProgramReport

LANES = 128
ONE_PASS = 0.45
"""The part of a float32 product's time that one pass of bfloat16 saves, compared with six: 11.8 against 21.2 us for
1024^3 in the compiler's simulation for v6e."""
PAST = 16
"Maximum elements past a multiple of 128 that count as a size just above a tile."
SMALL = 1 << 16
"Minimum bytes of a result that advice is given for."


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
                _time_of(report, products) * ONE_PASS if precision == "HIGHEST" else None,
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


RULES: dict[str, Callable[[ProgramReport], Found]] = {
    "does-not-fit": _too_large,
    "narrow-heads": _narrow_heads,
    "past-a-tile": _past_a_tile,
    "float32-products": _float32_products,
    "held-value": _held_values,
    "held-gradients": _held_gradients,
    "not-donated": _not_donated,
    "exposed-collectives": _exposed_collectives,
}
"Code of the advice -> rule."
