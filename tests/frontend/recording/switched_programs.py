"""Random programs of ops and factories, which run while torch's global switches change, on the device and on the
CPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import lazytpu

Switching = Callable[[Any], object]
backends: Any = torch.backends
determinism: Any = torch.utils.deterministic


def _deterministic(value: str) -> None:
    torch.set_deterministic_debug_mode(value)


def _fill(value: bool) -> None:
    determinism.fill_uninitialized_memory = value


def _generic(value: str) -> None:
    backends.fp32_precision = value


def _mkldnn(value: str) -> None:
    backends.mkldnn.matmul.fp32_precision = value


# How each switch is set, and its values; the first value is torch's default.
SWITCHES: dict[str, tuple[Switching, Sequence[Any]]] = {
    "default dtype": (torch.set_default_dtype, (torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    "deterministic algorithms": (_deterministic, ("default", "error", "warn")),
    "fill uninitialized memory": (_fill, (True, False)),
    "torch.backends.fp32_precision": (_generic, ("none", "tf32", "bf16", "ieee")),
    "torch.backends.mkldnn.matmul.fp32_precision": (_mkldnn, ("none", "bf16")),
    "float32 matmul precision": (torch.set_float32_matmul_precision, ("highest", "medium", "high")),
    "grad mode": (torch.set_grad_enabled, (True, False)),
    "warn always": (torch.set_warn_always, (False, True)),
}


def reset() -> None:
    """Set every switch to torch's default."""
    for set_, values in SWITCHES.values():
        set_(values[0])


@contextmanager
def as_before() -> Iterator[None]:
    """Restore torch's defaults at the end."""
    try:
        yield
    finally:
        reset()


@dataclass(frozen=True)
class Place:
    """The device of a program, and its initial tensors."""

    device: str
    leaves: tuple[Tensor, ...]

    @staticmethod
    def on(device: str) -> Place:
        """Return small numbers of many dtypes, including a parameter, and a mask at the end."""
        base = torch.tensor([[1, 2, 3], [4, 2, 1], [3, 1, 2]])
        dtypes = (torch.int64, torch.float32, torch.bool, torch.float64, torch.int8, torch.bfloat16, torch.complex64)
        leaves = [base.to(dtype) for dtype in dtypes]
        parameter = base.to(torch.float32).to(device).requires_grad_()
        return Place(device, (parameter, *[leaf.to(device) for leaf in leaves], (base > 1).to(device)))


Op = Callable[[Place, Tensor, Tensor], Any]

# Factories: their results depend on the switches alone.
FACTORIES: dict[str, Op] = {
    "arange": lambda p, x, y: torch.arange(0.0, 3.0, 0.5, device=p.device),
    "arange of ints": lambda p, x, y: torch.arange(7, device=p.device),
    "linspace": lambda p, x, y: torch.linspace(0, 1, 5, device=p.device),
    "logspace": lambda p, x, y: torch.logspace(0, 1, 5, device=p.device),
    "linspace of tensors": lambda p, x, y: torch.linspace(
        torch.tensor(0.0, dtype=torch.float32, device=p.device), torch.tensor(1.0, device=p.device), 4
    ).to(p.device),
    "full": lambda p, x, y: torch.full((3, 3), 2.1, device=p.device),
    "full of complex": lambda p, x, y: torch.full((3, 3), 2.1j, device=p.device),
    "full of int": lambda p, x, y: torch.full((3, 3), 2, device=p.device),
    "ones": lambda p, x, y: torch.ones(3, 3, device=p.device),
    "zeros": lambda p, x, y: torch.zeros(3, 3, device=p.device),
    "eye": lambda p, x, y: torch.eye(3, device=p.device),
    "tensor": lambda p, x, y: torch.tensor([2.1, 0.3], device=p.device),
    "scalar_tensor": lambda p, x, y: torch.scalar_tensor(2.1, device=p.device),
    "hann_window": lambda p, x, y: torch.hann_window(6, device=p.device),
    "kaiser_window": lambda p, x, y: torch.kaiser_window(6, device=p.device),
    "fftfreq": lambda p, x, y: torch.fft.fftfreq(5, device=p.device),
    "tril_indices": lambda p, x, y: torch.tril_indices(3, 3, device=p.device),
    "zeros_like": lambda p, x, y: torch.zeros_like(x),
    "full_like": lambda p, x, y: torch.full_like(x, 1),
    "new_ones": lambda p, x, y: x.new_ones(3, 3),
    "dtype of rand": lambda p, x, y: torch.rand(3, device=p.device) * 0,
    "dtype of randn": lambda p, x, y: torch.randn(3, device=p.device) * 0,
    "dtype of randint": lambda p, x, y: torch.randint(0, 2, (3,), device=p.device) * 0,
    "dtype of normal": lambda p, x, y: torch.normal(0.0, 1.0, (3,), device=p.device) * 0,
    "empty": lambda p, x, y: _unwritten(torch.empty(3, 3, device=p.device)),
    "empty of ints": lambda p, x, y: _unwritten(torch.empty(4, dtype=torch.int16, device=p.device)),
    "empty_like": lambda p, x, y: _unwritten(torch.empty_like(x)),
    "new_empty": lambda p, x, y: _unwritten(x.new_empty(2, 3)),
    "empty_strided": lambda p, x, y: _unwritten(torch.empty_strided((2, 3), (1, 2), device=p.device)),
    "empty_permuted": lambda p, x, y: _unwritten(torch.empty_permuted((2, 3), (1, 0), device=p.device)),
    "resize_": lambda p, x, y: _grown(x.detach().clone()),
}


def _unwritten(tensor: Tensor) -> Tensor:
    filled = torch.are_deterministic_algorithms_enabled() and determinism.fill_uninitialized_memory
    return tensor if filled else torch.zeros_like(tensor)


def _grown(tensor: Tensor) -> Tensor:
    tensor.resize_(12)
    return torch.cat([tensor[:9], _unwritten(tensor[9:])])


# Ops: their results depend on the dtypes of tensors, on numbers, and on the switches.
OPS: dict[str, Op] = {
    "mul by a float": lambda p, x, y: x * 2.1,
    "add of a float": lambda p, x, y: x + 0.1,
    "sub from a float": lambda p, x, y: 0.1 - x,
    "mul by a complex": lambda p, x, y: x * 2.1j,
    "mul by an int": lambda p, x, y: x * 2,
    "mul by a bool": lambda p, x, y: x * True,
    "add": lambda p, x, y: torch.add(x, y),
    "add with alpha": lambda p, x, y: torch.add(x, y, alpha=2),
    "div": lambda p, x, y: x / y.abs().clamp(min=1) if y.dtype is not torch.bool else x / 2,
    "div by an int": lambda p, x, y: x / 3,
    "floor division": lambda p, x, y: x // 2,
    "remainder": lambda p, x, y: x % 2,
    "root": lambda p, x, y: x**0.5,
    "square": lambda p, x, y: x**2,
    "power of a float": lambda p, x, y: 1.1**x,
    "exp": lambda p, x, y: x.exp(),
    "sigmoid": lambda p, x, y: x.sigmoid(),
    "sqrt": lambda p, x, y: x.sqrt(),
    "atan2": lambda p, x, y: torch.atan2(x, y),
    "mean": lambda p, x, y: x.mean(),
    "mean of a dtype": lambda p, x, y: x.mean(dtype=torch.float32),
    "sum": lambda p, x, y: x.sum(0),
    "prod": lambda p, x, y: x.prod(1),
    "cumsum": lambda p, x, y: x.cumsum(0),
    "std": lambda p, x, y: x.std(),
    "norm": lambda p, x, y: x.norm(),
    "softmax": lambda p, x, y: x.softmax(0),
    "where of numbers": lambda p, x, y: torch.where(p.leaves[-1], 1.1, 2.1),
    "where of a number": lambda p, x, y: torch.where(p.leaves[-1], x, 2.1),
    "where": lambda p, x, y: torch.where(p.leaves[-1], x, y),
    "clamp": lambda p, x, y: x.real.clamp(max=1.5),
    "equal to a float": lambda p, x, y: x == 2.0,
    "equal past a float's bits": lambda p, x, y: (p.leaves[1] + 16777216) == 16777218.0,
    "less than a float": lambda p, x, y: x < 1.5,
    "masked_fill": lambda p, x, y: x.masked_fill(p.leaves[-1], 2),
    "lerp": lambda p, x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda p, x, y: torch.addcmul(x, x, y, value=2),
    "copysign": lambda p, x, y: torch.copysign(x, -1.5),
    "ldexp": lambda p, x, y: torch.ldexp(x, p.leaves[1]),
    "float_power": lambda p, x, y: torch.float_power(x, 2),
    "nan_to_num": lambda p, x, y: x.nan_to_num(1.5),
    "logical_and": lambda p, x, y: torch.logical_and(x, y),
    "matmul": lambda p, x, y: x @ y,
    "foreach": lambda p, x, y: torch.ops.aten._foreach_mul.Scalar([x, y], 2.1),
    "foreach_add": lambda p, x, y: torch.ops.aten._foreach_add.List([x, y], [y, x]),
    "in place by a float": lambda p, x, y: x.detach().clone().mul_(2.1),
    "into a result": lambda p, x, y: torch.mul(x, 2.1, out=torch.zeros(3, 3, device=p.device)),
    "put": lambda p, x, y: x.put(p.leaves[1][0] - 1, y[0].to(x.dtype)),
    "put_": lambda p, x, y: x.detach().clone().put_(p.leaves[1][0] - 1, y[0].to(x.dtype)),
    "accumulated put_": lambda p, x, y: x.detach().clone().put_(p.leaves[1][0] - 1, y[0].to(x.dtype), True),
    "item": lambda p, x, y: torch.as_tensor(x.sum().item() * 1.1, device=p.device),
    "index": lambda p, x, y: x[p.leaves[1][0] - 1],
    "one_hot": lambda p, x, y: torch.nn.functional.one_hot(p.leaves[1][0], 5),
    "bincount": lambda p, x, y: torch.bincount(p.leaves[1][0], weights=x[0].detach() if not x.is_complex() else None),
    "histc": lambda p, x, y: torch.histc(x.detach().double(), 4, 0, 4),
    "embedding": lambda p, x, y: torch.nn.functional.embedding(p.leaves[1][0] - 1, x),
    "var_mean": lambda p, x, y: torch.var_mean(x),
    "type": lambda p, x, y: x.float(),
}
ALL = {**FACTORIES, **OPS}
_INNER = [name for name in ALL if "complex" not in name]  # some have a dtype that no program can hold


@dataclass(frozen=True)
class Statement:
    """One op on two leaves, or on the result of another op on them."""

    op: str
    inner: str | None
    x: int
    y: int

    def run(self, place: Place) -> Any:
        """Return its result, or the type of its error."""
        x, y = place.leaves[self.x], place.leaves[self.y]
        try:
            if self.inner is not None:
                first = ALL[self.inner](place, x, y)
                x = first if isinstance(first, Tensor) and first.shape == (3, 3) else x
            return ALL[self.op](place, x, y)
        except (RuntimeError, TypeError, NotImplementedError, IndexError) as error:
            return type(error)


Step = Statement | tuple[str, Any] | None  # a switch to set, or None for a cut


def program(seed: int) -> list[Step]:
    """Return the same statements three times, with the switches set at different places, and cuts at the same ones."""
    draw = random.Random(seed)
    leaves = len(Place.on("cpu").leaves)
    statements: list[Statement | None] = []
    for _ in range(draw.randint(4, 10)):
        inner = draw.choice(_INNER) if draw.random() < 0.4 else None
        statements.append(Statement(draw.choice(list(ALL)), inner, draw.randrange(leaves), draw.randrange(leaves)))
        if draw.random() < 0.15:
            statements.append(None)
    steps: list[Step] = []
    for run in range(3):
        for statement in statements:
            if run and draw.random() < 0.25:
                name = draw.choice(list(SWITCHES))
                steps.append((name, draw.choice(SWITCHES[name][1])))
            steps.append(statement)
        steps.append(None)
    return steps


def run(steps: Sequence[Step], device: str) -> list[Any]:
    """Return the results of all statements, in order, on the CPU."""
    reset()
    place, results = Place.on(device), list[Any]()
    with as_before(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps:
            if isinstance(step, Statement):
                results.append(step.run(place))
            elif step is None:
                if device == "tpu":
                    lazytpu.mark_step()
            else:
                SWITCHES[step[0]][0](step[1])
    return [_on_cpu(result) for result in results]


def _on_cpu(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach().cpu(), result.requires_grad
    return [_on_cpu(r) for r in result] if isinstance(result, list | tuple) else result


def differences(steps: Sequence[Step], actual: list[Any], expected: list[Any]) -> list[str]:
    """Return the statements whose dtypes, values, gradients or errors differ."""
    differing: list[str] = []
    statements = [step for step in steps if isinstance(step, Statement)]
    for statement, got, want in zip(statements, actual, expected, strict=True):
        said = _difference(got, want, 2e-2 if statement.inner else 1e-9)
        if said:
            differing.append(f"{statement}: {said}")
    return differing


def _difference(actual: Any, expected: Any, of_double: float) -> str:
    """Describe the difference. An op on float64 alone is accurate to `of_double`; other dtypes are rounded at varying
    places."""
    if isinstance(actual, list) and isinstance(expected, list):
        return "; ".join(filter(None, (_difference(a, e, of_double) for a, e in zip(actual, expected, strict=True))))
    if isinstance(actual, type) and isinstance(expected, type):
        return "" if issubclass(actual, expected) or issubclass(expected, actual) else f"{actual} for {expected}"
    if not isinstance(expected, tuple):
        return f"{actual} for {expected}"
    values, needed = expected
    if not isinstance(actual, tuple):
        refused = values.dtype is torch.complex32 and actual is NotImplementedError  # no program can hold it
        return "" if refused else f"{actual} for {expected}"
    tensor, needs = actual
    if (tensor.dtype, tensor.shape, needs) != (values.dtype, values.shape, needed):
        return f"{tensor.dtype} {list(tensor.shape)} {needs} for {values.dtype} {list(values.shape)} {needed}"
    rough = of_double if values.dtype in (torch.float64, torch.complex128) else 2e-2
    close = torch.allclose(tensor.to(torch.complex128), values.to(torch.complex128), rough, rough, equal_nan=True)
    return "" if close else f"{tensor} for {values}"
