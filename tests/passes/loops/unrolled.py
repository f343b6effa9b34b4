"""Programs of repeated stretches, as text: a loop and its backward loop, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

TRIPS = 5
ROW = "tensor<3xf32>"
ROWS = f"tensor<{TRIPS}x3xf32>"
PACK = f"tensor<{2 * TRIPS + 2}xf32>"
ARGUMENTS = (
    f"%pack: {PACK}, %rows: {ROWS}, %a: {ROW}, %b: {ROW}, "
    + ", ".join(f"%w{i}: {ROW}" for i in range(TRIPS))
)  # fmt: skip


def arrays(seed: int = 0) -> list[np.ndarray]:
    """Return arguments of a program."""
    random = np.random.default_rng(seed)
    shapes = [(2 * TRIPS + 2,), (TRIPS, 3), (3,), (3,), *((3,) for _ in range(TRIPS))]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@dataclass
class Text:
    """A body under construction."""

    lines: list[str] = field(default_factory=list[str])

    def op(self, text: str) -> str:
        """Append an op with one result; return the result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = lazytpu.{text}")
        return name

    def binary(self, kind: str, x: str, y: str) -> str:
        return self.op(f"{kind} {x}, {y} : {ROW}")

    def unary(self, kind: str, x: str) -> str:
        return self.op(f"{kind} {x} : {ROW}")

    def number(self, index: int) -> str:
        number = self.op(f"number %pack {index} : ({PACK}) -> tensor<f32>")
        return self.op(f"broadcast_in_dim {number} dims = [] : (tensor<f32>) -> {ROW}")

    def row(self, array: str, i: int) -> str:
        sliced = self.op(
            f"slice {array} starts = [{i}, 0] limits = [{i + 1}, 3] strides = [1, 1] : ({ROWS}) -> tensor<1x3xf32>"
        )
        return self.op(f"reshape {sliced} : (tensor<1x3xf32>) -> {ROW}")

    def put(self, array: str, row: str, i: int) -> str:
        update = self.op(f"reshape {row} : ({ROW}) -> tensor<1x3xf32>")
        at, zero = self.op(f"constant {i} : tensor<i32>"), self.op("constant 0 : tensor<i32>")
        return self.op(
            f"dynamic_update_slice {array}, {update}, {at}, {zero} : "
            f"({ROWS}, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> {ROWS}"
        )

    def pad(self, row: str, i: int) -> str:
        update = self.op(f"reshape {row} : ({ROW}) -> tensor<1x3xf32>")
        zero = self.op("constant 0.0 : tensor<f32>")
        return self.op(
            f"pad {update}, {zero} low = [{i}, 0] high = [{TRIPS - 1 - i}, 0] interior = [0, 0] : "
            f"(tensor<1x3xf32>, tensor<f32>) -> {ROWS}"
        )

    def stack(self, rows: Sequence[str]) -> str:
        reshaped = [self.op(f"reshape {row} : ({ROW}) -> tensor<1x3xf32>") for row in rows]
        types = ", ".join("tensor<1x3xf32>" for _ in rows)
        return self.op(f"concatenate {', '.join(reshaped)} dim = 0 : ({types}) -> tensor<{len(rows)}x3xf32>")

    def module(self, results: Sequence[tuple[str, str]]) -> str:
        names, types = ", ".join(name for name, _ in results), ", ".join(kind for _, kind in results)
        body = "\n".join(self.lines)
        return (
            f"builtin.module {{\nfunc.func @main({ARGUMENTS}) -> ({types}) {{\n{body}\n"
            f"func.return {names} : {types}\n}}\n}}"
        )


def program(build: Callable[[Text], Sequence[tuple[str, str]]]) -> str:
    """Return the module that `build` writes; it returns (name, type) of the results."""
    text = Text()
    return text.module(build(text))
