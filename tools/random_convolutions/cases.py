"""Random chains of one to three windowed ops, with small integers as values: most sums are exact in every dtype."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

MAX_ELEMENTS = 20_000  # of a result: torch's CPU computes it in milliseconds
SIZES = (1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 11, 20)
DTYPES = (*(torch.float32,) * 6, torch.float64, torch.float64, torch.bfloat16, torch.bfloat16, torch.float16)
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass
class Step:
    """A call `name(x, *parameters, **options)`; the parameters are tensors of these shapes."""

    name: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    shapes: tuple[tuple[int, ...], ...] = ()
    exact: bool = True

    def __call__(self, x: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        function = OWN.get(self.name) or getattr(functional, self.name)
        return function(x, *parameters, **self.options)

    def __str__(self) -> str:
        arguments = [*(str(list(shape)) for shape in self.shapes), *(f"{k}={v}" for k, v in self.options.items())]
        return f"{self.name}({', '.join(arguments)})"


@dataclass
class Case:
    """A chain of steps over an input; `order` 0 takes no gradient, 1 the gradients, 2 also the gradients of the
    gradients."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    strided: bool
    steps: list[Step]
    order: int

    def __str__(self) -> str:
        chain = ", ".join(map(str, self.steps))
        return f"{list(self.shape)} {self.dtype}{' channels last' if self.strided else ''} order {self.order}: {chain}"

    def run(self, device: str) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """The result and gradients, on the CPU, and the strides that the result had."""
        generator = torch.Generator().manual_seed(self.number)

        def leaf(shape: Sequence[int], limit: int) -> torch.Tensor:
            values = torch.randint(-limit, limit + 1, tuple(shape), generator=generator).to(self.dtype)
            return values.to(device)

        x = leaf(self.shape, 2)
        if self.strided:
            x = x.to(memory_format=FORMATS[len(self.shape) - 2])
        leaves = [x.requires_grad_(self.order > 0)]
        y = x
        for step in self.steps:
            parameters = [leaf(shape, 1).requires_grad_(self.order > 0) for shape in step.shapes]
            leaves += parameters
            y = step(y, parameters)
        results = [y]
        if self.order:
            weights = leaf(y.shape, 1).requires_grad_()
            grads = torch.autograd.grad((y * weights).sum(), leaves, create_graph=self.order > 1)
            results += grads
        if self.order > 1:
            total = sum(((grad * leaf(grad.shape, 1)).sum() for grad in grads), torch.zeros((), device=device))
            results += torch.autograd.grad(total, [*leaves, weights], allow_unused=True, materialize_grads=True)
        return [result.detach().cpu() for result in results], y.stride()


def draw(number: int) -> Case:
    """The case of that number, the same in every process."""
    rng = random.Random(number)
    rank = rng.choice((1, 1, 2, 2, 2, 2, 3))
    dtype = rng.choice(DTYPES)
    channels = 34 if rng.random() < 0.03 else rng.choice((1, 2, 3, 4, 6))
    batch = 0 if rng.random() < 0.03 else rng.choice((1, 2, 3))
    shape = (batch, channels, *(rng.choice(SIZES if rank < 3 else SIZES[:-2]) for _ in range(rank)))
    steps: list[Step] = []
    x, exact = torch.empty(shape, device="meta", dtype=dtype), True
    for _ in range(rng.choice((1, 2, 2, 3)) if dtype is not torch.float16 else 1):
        step, result = _fitting(rng, x, exact)
        if step is None:
            break
        steps.append(step)
        # A maximum of values that are rounded otherwise may be another element.
        exact = exact and step.exact and dtype in (torch.float32, torch.float64)
        x = result
    strided = rank in FORMATS and rng.random() < 0.3
    return Case(number, shape, dtype, strided, steps, rng.choice((0, 1, 1, 1, 2)))


def _fitting(rng: random.Random, x: torch.Tensor, exact: bool) -> tuple[Step | None, torch.Tensor]:
    """Return a step that fits x, and its result; None if ten in a row do not."""
    for _ in range(10):
        step = rng.choices([draw for draw, _ in KINDS], [weight for _, weight in KINDS])[0](rng, x)
        if "max" in step.name and not exact:
            continue
        try:
            result = step(x, [x.new_empty(shape) for shape in step.shapes])
        except (RuntimeError, ValueError, IndexError, TypeError):  # the last for batches of 0
            continue
        if 0 not in result.shape[1:] and result.numel() <= MAX_ELEMENTS:
            return step, result
    return None, x


def _each(rng: random.Random, x: torch.Tensor, values: Sequence[int]) -> tuple[int, ...]:
    """A number for each spatial dimension."""
    return tuple(rng.choice(values) for _ in x.shape[2:])


def _movement(rng: random.Random, x: torch.Tensor) -> tuple[tuple[int, ...], dict[str, Any]]:
    kernel = _each(rng, x, (1, 2, 2, 3, 3, 4))
    stride, padding = _each(rng, x, (1, 1, 2, 3)), _each(rng, x, (0, 0, 1, 2))
    if rng.random() < 0.3:
        stride, padding = kernel, tuple(k - 1 for k in kernel)
    return kernel, {"stride": stride, "padding": padding, "dilation": _each(rng, x, (1, 1, 1, 2, 3))}


def _groups(rng: random.Random, channels: int) -> int:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    return 1 if rng.random() < 0.6 else rng.choice([*divisors, channels])


def _convolution(rng: random.Random, x: torch.Tensor) -> Step:
    kernel, options = _movement(rng, x)
    if rng.random() < 0.1:
        options |= {"stride": 1, "padding": rng.choice(("same", "valid"))}
    groups = _groups(rng, x.shape[1])
    outputs = groups * rng.choice((1, 1, 2, 3))
    bias = ((outputs,),) if rng.random() < 0.4 else ()
    return Step(f"conv{x.dim() - 2}d", {**options, "groups": groups}, ((outputs, x.shape[1] // groups, *kernel), *bias))


def _transposed(rng: random.Random, x: torch.Tensor) -> Step:
    kernel, options = _movement(rng, x)
    groups = _groups(rng, x.shape[1])
    outputs = rng.choice((1, 1, 2, 3))
    if rng.random() < 0.4:
        options["output_padding"] = tuple(
            rng.randrange(max(s, d)) for s, d in zip(options["stride"], options["dilation"], strict=True)
        )
    bias = ((outputs * groups,),) if rng.random() < 0.4 else ()
    name = f"conv_transpose{x.dim() - 2}d"
    return Step(name, {**options, "groups": groups}, ((x.shape[1], outputs, *kernel), *bias))


def _pool(rng: random.Random, x: torch.Tensor) -> Step:
    kernel, options = _movement(rng, x)
    options |= {"kernel_size": kernel, "padding": tuple(min(p, k // 2) for p, k in zip(options["padding"], kernel))}
    options["ceil_mode"] = rng.random() < 0.3
    if rng.random() < 0.5:
        if any(options["padding"]):  # the CPU returns an index outside the plane for a window of padding alone
            options["dilation"] = 1
        return Step(f"max_pool{x.dim() - 2}d", options)
    del options["dilation"]
    options["count_include_pad"] = rng.random() < 0.5
    return Step(f"avg_pool{x.dim() - 2}d", options, exact=False)


def _adaptive(rng: random.Random, x: torch.Tensor) -> Step:
    kind = rng.choice(("avg", "max"))
    name = f"adaptive_{kind}_pool{x.dim() - 2}d"
    return Step(name, {"output_size": _each(rng, x, (1, 2, 3, 4))}, exact=kind == "max")


def _interpolation(rng: random.Random, x: torch.Tensor) -> Step:
    smooth = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}[x.dim() - 2]
    mode = rng.choice(("nearest", "nearest-exact", "area", *smooth))
    options: dict[str, Any] = {"size": _each(rng, x, (1, 2, 3, 5, 8)), "mode": mode}
    if mode in smooth:
        options["align_corners"] = rng.random() < 0.5
    return Step("interpolate", options, exact=mode.startswith("nearest"))


def _padding(rng: random.Random, x: torch.Tensor) -> Step:
    mode = rng.choice(("constant", "reflect", "replicate", "circular"))
    numbers = (0, 0, 1, 1, 2) if mode == "circular" else (-1, 0, 0, 1, 2)  # negative ones leave elements unwritten
    return Step("pad", {"pad": [rng.choice(numbers) for _ in range(2 * (x.dim() - 2))], "mode": mode})


def _spreading(rng: random.Random, x: torch.Tensor) -> Step:
    return Step("spread", {"steps": _each(rng, x, (1, 1, 2, 3))})


def _stepping(rng: random.Random, x: torch.Tensor) -> Step:
    return Step("every", {"steps": _each(rng, x, (1, 1, 2, 3))})


def _folding(rng: random.Random, x: torch.Tensor) -> Step:
    kernel, options = _movement(rng, x)
    return Step("folded", {"kernel_size": kernel, **options})


def _spread(x: torch.Tensor, steps: Sequence[int]) -> torch.Tensor:
    """x with zeros between its elements."""
    result = x.new_zeros((*x.shape[:2], *((n - 1) * step + 1 for n, step in zip(x.shape[2:], steps, strict=True))))
    result[(..., *(slice(None, None, step) for step in steps))] = x
    return result


def _every(x: torch.Tensor, steps: Sequence[int]) -> torch.Tensor:
    return x[(..., *(slice(None, None, step) for step in steps))]


def _folded(x: torch.Tensor, **window: Any) -> torch.Tensor:
    if x.dim() != 4:
        raise NotImplementedError("torch folds two dimensions only")
    return functional.fold(functional.unfold(x, **window), tuple(x.shape[2:]), **window)


OWN: dict[str, Callable[..., torch.Tensor]] = {"spread": _spread, "every": _every, "folded": _folded}
KINDS: tuple[tuple[Callable[[random.Random, torch.Tensor], Step], int], ...] = (
    (_convolution, 40),
    (_transposed, 20),
    (_pool, 14),
    (_adaptive, 5),
    (_interpolation, 6),
    (_padding, 4),
    (_spreading, 4),
    (_stepping, 4),
    (_folding, 5),
)
