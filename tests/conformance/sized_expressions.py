"""Random expressions of sizes, three levels of `+ - * // %` over one or two symbols, and ops that take them.

`Case.of(seed)` draws one. Python computes the expression, as a script does; its value is a limit of a slice, a divisor,
a shape, a pad, or the length of an `arange`. Expressions with negative or large values are drawn again.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Expression = Callable[[int, int], int]
Use = Callable[[Tensor, int], "list[Tensor]"]
COLUMNS = 4
MAX_VALUE = 96
"The greatest value of an expression."
TRIES = 10_000
BUCKETS: tuple[tuple[range, range], ...] = (
    (range(33, 41), range(1)),
    (range(13, 17), range(1)),
    (range(49, 57), range(1)),
    (range(9, 13), range(5, 8)),
    (range(17, 21), range(9, 11)),
)
"""Sizes of n and m that share a bucket; cases with one symbol ignore m."""
TAUGHT = 5
"""The number of sizes in several buckets that run first, so that the sizes are seen to vary."""
BOUNDS = (4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64)
"""The bounds of the buckets: in short ranges, many expressions agree at a few sizes."""
OPS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _sliced(x: Tensor, e: int) -> list[Tensor]:
    rows = x[:e]
    return [rows * 2, rows.mean(0), rows.cumsum(0).sum(0)]


def _behind(x: Tensor, e: int) -> list[Tensor]:
    return [x[e:] + 1, x[e:].sum(0)]


def _divided(x: Tensor, e: int) -> list[Tensor]:
    return [x.sum(0) / (e + 1), x[: e + 1].var(0, correction=0)]


def _shaped(x: Tensor, e: int) -> list[Tensor]:
    return [torch.ones(e, 2, device=x.device).sum(0) + x[0, :2], x[:1].expand(e, -1).sum(0)]


def _reshaped(x: Tensor, e: int) -> list[Tensor]:
    flat = torch.full((e * 2,), 0.5, device=x.device).cumsum(0).reshape(2, e)
    return [flat.sum(1) * x[0, :2]]


def _padded(x: Tensor, e: int) -> list[Tensor]:
    y = functional.pad(x, (0, 0, e, 1), value=0.5)
    return [y.flip(0)[0], y.mean(0), y]


def _counted(x: Tensor, e: int) -> list[Tensor]:
    at = torch.arange(e, device=x.device)
    return [at * x[0, 0], (at * at).sum() + x[1, 0]]


def _rolled(x: Tensor, e: int) -> list[Tensor]:
    return [x.roll(e, 0), torch.cat([x[e // 2 :], x[: e // 3]]).mean(0)]


def _strided(x: Tensor, e: int) -> list[Tensor]:
    return [x.reshape(-1)[: e + 1 : 2].sum(), x.narrow(0, 0, min(e, len(x))).sum(0)]


USES: Mapping[str, Use] = {
    "slice limit": _sliced,
    "slice start": _behind,
    "divisor": _divided,
    "shape": _shaped,
    "reshape": _reshaped,
    "pad": _padded,
    "arange": _counted,
    "shift": _rolled,
    "steps": _strided,
}


def drawn(r: random.Random, levels: int, symbols: str) -> str:
    """Return the text of a random expression."""
    if not levels or r.random() < 0.15:
        return r.choice(symbols) if r.random() < 0.6 else str(r.randrange(1, 10))
    op = r.choice(["+", "+", "-", "*", "//", "//", "%"])
    right = str(r.randrange(2, 10)) if op in ("//", "%") else drawn(r, levels - 1, symbols)
    return f"({drawn(r, levels - 1, symbols)} {op} {right})"


@dataclass(frozen=True)
class Case:
    """An expression, the op that takes it, and the sizes in their order: some of several buckets, then all sizes of
    one."""

    seed: int
    text: str
    use: str
    sizes: tuple[tuple[int, int], ...]
    nan: bool
    """Whether some elements are NaN, which must not spread to other elements."""

    @classmethod
    def of(cls, seed: int) -> Case:
        r = random.Random(seed)
        rows, columns = r.choice(BUCKETS)
        sizes = [(n, m) for n in rows for m in columns]
        taught = [(r.randrange(9, 65), r.choice(columns)) for _ in range(TAUGHT)]
        symbols = "n" if len(columns) == 1 else "nm"
        for _ in range(TRIES):
            text = drawn(r, 3, symbols)
            expression = compiled(text)
            values = {expression(n, m) for n, m in (*taught, *sizes)}
            if len(values) > 1 and min(values) >= 0 and max(values) <= MAX_VALUE:
                break
        else:
            raise AssertionError(f"seed {seed} has no expression")
        r.shuffle(sizes)
        return cls(seed, text, r.choice(list(USES)), (*taught, *sizes), r.random() < 0.3)

    def run(self, x: Tensor, n: int, m: int) -> list[Tensor]:
        """Compute the case for x, which has n rows and m + `COLUMNS` columns."""
        return USES[self.use](torch.relu(x), compiled(self.text)(n, m))

    def input(self, n: int, m: int) -> Tensor:
        x = torch.randn(n, COLUMNS + m, generator=torch.Generator().manual_seed(self.seed * 997 + n * 31 + m))
        if self.nan:
            x[n // 2, 1] = torch.nan
        return x


def compiled(text: str) -> Expression:
    """Return the expression as a function."""
    return eval(f"lambda n, m: {text}", {})
