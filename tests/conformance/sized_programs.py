"""Random programs over tensors with one or two varying dims, for any sizes and devices.

`Program.of(seed)` draws one. Steps do not depend on a size: each is run at two pairs of sizes when it is drawn, and
omitted if the CPU refuses it at one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn import functional

Sizes = tuple[int, int]
"n and m."
Step = Callable[[list[torch.Tensor]], torch.Tensor]
TRIED: tuple[Sizes, ...] = ((5, 4), (7, 3))
LARGEST = 400  # elements of a value at the sizes tried
WIDTH = 3  # of the dims that do not vary

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "square": torch.square,
    "abs": torch.abs,
    "exp of minus its square": lambda x: (-x * x).exp(),
    "reciprocal": lambda x: 1 / (1 + x * x),
    "minus one": lambda x: x - 1,
    "clone": torch.clone,
    "contiguous transpose": lambda x: x.mT.contiguous() if x.dim() > 1 else x,
    "transpose": lambda x: x.mT if x.dim() > 1 else x,
    "flat": lambda x: x.reshape(-1),
    "in rows of three": lambda x: x.reshape(-1, WIDTH),
    "lower triangle": lambda x: x.tril() if x.dim() > 1 else x,
    "diagonal": lambda x: x.diagonal(0, -2, -1) if x.dim() > 1 else x,
    "linear": lambda x: functional.linear(x, _weight(x, 2, WIDTH)) if x.shape[-1] == WIDTH else x,
    "normed": lambda x: functional.layer_norm(x, (WIDTH,)) if x.shape[-1] == WIDTH else x,
    "of places": lambda x: x + torch.arange(x.shape[-1], device=x.device),
    "with itself": lambda x: x @ x.mT if x.dim() > 1 else x * x,
}
ALONG: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, d: x.sum(d),
    "mean kept": lambda x, d: x.mean(d, keepdim=True),
    "greatest": lambda x, d: x.amax(d),
    "variance": lambda x, d: x.var(d, correction=0),
    "softmax": lambda x, d: x.softmax(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "cumulative sum": lambda x, d: x.cumsum(d),
    "sorted": lambda x, d: x.sort(dim=d, stable=True).values,
    "flipped": lambda x, d: x.flip(d),
    "rolled": lambda x, d: x.roll(1, d),
    "all but the last": lambda x, d: x.narrow(d, 0, x.shape[d] - 1),
    "all but the first": lambda x, d: x.narrow(d, 1, x.shape[d] - 1),
    "last": lambda x, d: x.select(d, -1),
    "every other": lambda x, d: x.movedim(d, 0)[::2].movedim(0, d),
    "new dim": lambda x, d: x.unsqueeze(d),
    "twice": lambda x, d: torch.cat([x, 2 * x], d),
    "stacked": lambda x, d: torch.stack([x, x + 1], d),
    "repeated": lambda x, d: x.repeat_interleave(2, d),
    "dims merged": lambda x, d: x.flatten(d, d + 1) if d + 1 < x.dim() else x,
    "one written": lambda x, d: x.clone().index_fill_(d, torch.zeros(1, dtype=torch.int64, device=x.device), 0.5),
    "scaled in place": lambda x, d: _in_place(x, d),
    "with ends": lambda x, d: functional.pad(x.movedim(d, -1), (1, 2), value=0.5).movedim(-1, d),
    "windows": lambda x, d: functional.avg_pool1d(_rows(x, d), 3, 1, 1),
    "maxima of windows": lambda x, d: functional.max_pool1d(_rows(x, d), 2, 2, ceil_mode=True),
    "convolved": lambda x, d: functional.conv1d(_rows(x, d)[:, None], _weight(x, 1, 1, 3), padding=1),
}
OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "added": torch.add,
    "multiplied": torch.mul,
    "greater of": torch.maximum,
    "chosen": lambda x, y: torch.where(torch.arange(x.shape[-1], device=x.device) % 2 == 0, x, y),
    "product": torch.matmul,
    "joined": lambda x, y: torch.cat([x, y], -1),
    "joined in front": lambda x, y: torch.cat([x, y], 0),
    "outer": lambda x, y: x.reshape(-1)[:, None] * y.reshape(-1),
    "as many": lambda x, y: x.reshape(y.shape),
}


def _weight(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, int(torch.Size(shape).numel()), device=x.device).reshape(shape)


def _rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    moved = x.movedim(dim, -1)
    return moved.reshape(-1, moved.shape[-1])


def _in_place(x: torch.Tensor, dim: int) -> torch.Tensor:
    y = x.clone()
    y.narrow(dim, 1, y.shape[dim] - 1).mul_(2)
    y.select(dim, 0).add_(1)
    return y


def _picked(index: int, x: int, dim: int, values: list[torch.Tensor]) -> torch.Tensor:
    """Return rows at indices from an input."""
    chosen = values[x]
    return chosen.index_select(dim, values[index] % max(chosen.shape[dim], 1))


def _spread(index: int, x: int, values: list[torch.Tensor]) -> torch.Tensor:
    """Add rows at indices from an input."""
    rows, chosen = values[x], values[index]
    at = chosen[: len(rows)] % max(len(rows), 1)
    return torch.zeros_like(rows).index_add(0, at, rows[: len(chosen)])


@dataclass
class Program:
    """Steps that each compute a value from earlier values; the first values are inputs. `names` describe the
    steps."""

    seed: int
    steps: list[Step] = field(default_factory=list[Step])
    names: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, seed: int) -> Program:
        """Draw the program of a seed: 2 to 7 steps."""
        rng, program = random.Random(seed), cls(seed)
        samples = [program.inputs(sizes) for sizes in TRIED]
        wanted = rng.randint(2, 7)
        for _ in range(60):
            name, step = program._draw(rng, samples[0])
            try:
                results = [step(values) for values in samples]
            except (RuntimeError, IndexError, ValueError):
                continue
            if any(r.numel() > LARGEST or r.dim() > 4 or not r.is_floating_point() for r in results):
                continue
            for values, result in zip(samples, results, strict=True):
                values.append(result)
            program.steps.append(step)
            program.names.append(name)
            if len(program.steps) == wanted:
                break
        return program

    def inputs(self, sizes: Sizes) -> list[torch.Tensor]:
        """Return tensors with these sizes; their values depend on the sizes. The last input has indices."""
        n, m = sizes
        random_ = torch.Generator().manual_seed(self.seed)
        shapes = ((n,), (n, WIDTH), (m, n), (2, n, WIDTH))
        floats = [torch.randn(shape, generator=random_) for shape in shapes]
        return [*floats, torch.randint(0, 100, (n,), generator=random_)]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the last values, and the gradients of the inputs that have one."""
        leaves = [x.requires_grad_(x.is_floating_point()) for x in inputs]
        values = list(leaves)
        for step in self.steps:
            values.append(step(values))
        results = values[len(leaves) :][-2:]
        loss = sum(((r * r).sum() if r.is_floating_point() else r.sum() * 0.0 for r in results), torch.zeros(()))
        floats = [x for x in leaves if x.requires_grad]
        grads = torch.autograd.grad(loss, floats, allow_unused=True) if loss.requires_grad else ()
        return [*results, *(g for g in grads if g is not None)]

    def _draw(self, rng: random.Random, values: list[torch.Tensor]) -> tuple[str, Step]:
        floats = [i for i, v in enumerate(values) if v.is_floating_point() and v.dim()]
        # The latest values are used most.
        x = rng.choice(floats) if rng.random() < 0.4 else floats[-1]
        kind = rng.choice(("unary", "along", "along", "two", "two", "picked", "spread"))
        if kind == "unary":
            name = rng.choice(list(UNARY))
            return f"{name} of {x}", partial(_apply, UNARY[name], (x,))
        dim = rng.randrange(values[x].dim())
        if kind == "along":
            name = rng.choice(list(ALONG))
            return f"{name} of {x} along {dim}", lambda v: ALONG[name](v[x], dim)
        if kind == "two":
            name, y = rng.choice(list(OF_TWO)), rng.choice(floats)
            return f"{x} and {y} {name}", partial(_apply, OF_TWO[name], (x, y))
        if kind == "picked":
            return f"rows of {x} along {dim} by index", partial(_picked, INDEX, x, dim)
        return f"rows of {x} added by index", partial(_spread, INDEX, x)


INDEX = 4  # the position of the input with indices


def _apply(function: Callable[..., torch.Tensor], which: Sequence[int], values: list[torch.Tensor]) -> Any:
    return function(*[values[i] for i in which])
