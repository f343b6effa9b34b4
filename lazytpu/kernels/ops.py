"""The torch ops that record custom kernels.

A kernel's op is `lazytpu_kernels::softmax`, with an overload for each number of operands and results and each set of
written operands. Its last argument is the key of the body. Two functions of one name share only the op. Operands and
results that are too many for a schema of torch, as the residuals of a long function are, form a list each. One overload
serves lists of all lengths: two of equal schemas make torch abort the process when it removes them at exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from lazytpu.aten import dtypes
from lazytpu.aten.registry import rule
from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.ir.builder import Builder
from lazytpu.ir.symbolic import number_at_bound
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.kernels.tracing import identifier
from lazytpu.trace.families import MEMBERS, Kind

NAMESPACE = "lazytpu_kernels"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")

ALLOWED = 64
"""The most arguments, and results, of an op: more are refused by torch's schemas."""

Results = tuple[tuple[torch.dtype, tuple[int, ...]], ...]
Aliases = tuple[tuple[int, int], ...]

_RESULTS: dict[str, Results] = {}
"""Key -> the results of a kernel."""
_RULES: dict[str, tuple[str, str]] = {}
"""Key -> the sharding and padding rules of a kernel that has any."""
_OPS: dict[tuple[str, int, int, Aliases], Any] = {}
"""Name, operands, results and aliases -> the op. All lists count as `ALLOWED` operands, or as one result more."""
_declaring = threading.RLock()


def declare(name: str, operands: int, aliases: Aliases, key: str, results: Results, rules: tuple[str, str]) -> Any:
    """Return the op that records the kernel `key`, defined at first use. Results in `aliases`, pairs of (operand,
    result), are written into operands and not returned. `rules` are the kernel's sharding and padding rules."""
    word = identifier(name)
    with _declaring:
        _RESULTS[key] = results
        if any(rules):
            _RULES[key] = rules
        listed = min(len(results), ALLOWED + 1 + len(aliases))
        signature = (word, min(operands, ALLOWED), listed, aliases)
        if signature not in _OPS:
            _OPS[signature] = _define(*signature)
        return _OPS[signature]


def takes_list(operands: int) -> bool:
    """Whether the op of so many operands takes them as one list, since torch does not allow them and the key."""
    return operands >= ALLOWED


def _define(name: str, operands: int, results: int, aliases: Aliases) -> Any:
    written = [operand for operand, _ in aliases]
    if written and takes_list(operands):
        raise NotImplementedError(
            f"{name} has {operands} operands and writes into some (input_output_aliases): expected fewer than "
            f"{ALLOWED} operands, as torch allows for an op. Stack some, or return the results without aliases"
        )
    fresh = [i for i in range(results) if i not in {result for _, result in aliases}]
    overload = f"f{operands}_{results}" + "".join(f"_{operand}w{result}" for operand, result in aliases)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    parameters = [f"Tensor({next(letters)}!) x{i}" if i in written else f"Tensor x{i}" for i in range(operands)]
    parameters = ["Tensor[] xs"] if takes_list(operands) else parameters
    returned = "Tensor" if len(fresh) == 1 else f"({', '.join(['Tensor'] * len(fresh))})"
    returned = "Tensor[]" if len(fresh) > ALLOWED else returned
    full = f"{name}.{overload}"
    LIBRARY.define(f"{full}({', '.join([*parameters, 'str key'])}) -> {returned}", tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(getattr(getattr(torch.ops, NAMESPACE), name), overload)
    rule(str(op))(_rule(aliases))
    torch.library.register_fake(f"{NAMESPACE}::{full}", _fake(aliases), lib=LIBRARY)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(full, _refuse(name), key)
    if not operands:  # no operand determines the device, so the dispatcher cannot infer the shape
        override(str(op))(lambda key: _empty(key, aliases, torch.device("meta")))
    activation.activate()
    LIBRARY.impl(full, kernel(op).call, "PrivateUse1" if operands else "CompositeExplicitAutograd")
    return op


def _rule(aliases: Aliases) -> Callable[..., Any]:
    """Return the op's import rule: one call of the kernel for the shapes of the operands, which a trace rebuilt at
    other sizes lacks. The fresh results come first, with the shapes that torch expects, and then those that are written
    to operands, with the shapes of these."""

    def imported(b: Builder, key: str, **operands: Any) -> tuple[SSAValue, ...]:
        values: list[SSAValue] = list(operands["xs"] if "xs" in operands else operands.values())
        if key in MEMBERS:
            key = _at(key, [(dtypes.torch_dtype(dtype_of(x)), _at_bound(shape_of(x))) for x in values])
        kinds: list[tuple[str, Sequence[Any]]] = [(dtypes.name(dtype), shape) for dtype, shape in _known(key)]
        fresh = _fresh(key, aliases)
        order = [*fresh, *(result for _, result in sorted(aliases))]
        shapes = [*(shape for _, shape in b.out[: len(fresh)]), *(shape_of(values[i]) for i, _ in sorted(aliases))]
        for i, shape in zip(order, shapes, strict=True):
            if _at_bound(shape) != tuple(kinds[i][1]):
                raise ValueError(f"the kernel returns {list(kinds[i][1])}, where {list(_at_bound(shape))} would follow")
            kinds[i] = kinds[i][0], shape
        results = b.jax_call(key, values, kinds, *_RULES.get(key, ()))
        return tuple(results[i] for i in order)

    return imported


def _at(key: str, operands: Sequence[Kind]) -> str:
    """Return the key of a kernel for operands of these shapes. Raise ValueError if it does not support them."""
    try:
        return MEMBERS[key].at(operands)[0]
    except Exception as error:  # a user function raises anything at unsupported sizes
        raise ValueError(str(error)) from error


def _at_bound(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(number_at_bound, shape))


def _fresh(key: str, aliases: Aliases) -> list[int]:
    """Return the indices of a kernel's results that are not written into operands."""
    return [i for i in range(len(_known(key))) if i not in {result for _, result in aliases}]


def _fake(aliases: Aliases) -> Callable[..., Any]:
    """Return a function that creates the op's results by shape and dtype alone."""

    def fake(*arguments: Any) -> Any:
        *operands, key = arguments
        operands = operands[0] if operands and isinstance(operands[0], list) else operands
        return _empty(key, aliases, operands[0].device if operands else torch.device("tpu"))

    return fake


def _empty(key: str, aliases: Aliases, device: torch.device) -> Any:
    kinds = [_known(key)[i] for i in _fresh(key, aliases)]
    results = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in kinds]
    if len(results) > ALLOWED:
        return results
    return results[0] if len(results) == 1 else tuple(results) if results else None


def _known(key: str) -> Results:
    if key not in _RESULTS:
        raise RuntimeError(
            f"the kernel {key} is not known to this process: call its function here, with operands of these shapes, "
            "before a graph that holds it"
        )
    return _RESULTS[key]


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*arguments: Any) -> Any:
        _known(arguments[-1])
        operands = arguments[0] if isinstance(arguments[0], list) else arguments[:-1]
        devices = sorted({str(t.device) for t in operands})
        raise RuntimeError(
            f"{name}: expected tensors on 'tpu', got tensors on {', '.join(devices)}. Move them there (x.to('tpu')): "
            "the device also runs on this machine's CPU"
        )

    return refuse
