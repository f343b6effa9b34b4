"""`lazytpu.options.cpu_fallback`: run ops without a rule on the CPU. Off by default.

Each such op costs a cut, a wait for the device, and copies in both directions. It is counted in `lazytpu.metrics()`,
and its first call warns with the user's line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend import activation
from lazytpu.frontend.device.generators import draw
from lazytpu.frontend.lines import user_line
from lazytpu.frontend.torch_private import CpuGenerator


class CpuFallbackWarning(UserWarning):
    """An op ran on the CPU, as `lazytpu.options.cpu_fallback` allows."""


_warned: set[OpOverload] = set()


def offered(op: OpOverload, missing: NotImplementedError) -> NotImplementedError:
    """Return the error of an op without a rule, extended by a hint to this option if the CPU can run the op."""
    if _returns_views(op):
        return missing
    return NotImplementedError(
        f"{missing}\nUntil then, LAZYTPU_CPU_FALLBACK=1 (lazytpu.options.cpu_fallback = True) runs such ops on the "
        "CPU: each call waits for the device and copies its tensors both ways."
    )


def run(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `op` by torch's CPU kernel. Returns its result, and copies written arguments back.

    Raises NotImplementedError for an op that returns views: they would not share the argument's memory.
    """
    schema = op._schema
    if _returns_views(op):
        raise NotImplementedError(f"{op} returns a view, which cannot be made by way of the CPU")
    _warn_once(op)
    activation.engine().fell_back()
    arguments = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
    computed = {name: _map(value, _to_cpu) for name, value in arguments.items()}
    for a in schema.arguments:
        if "Generator" in str(a.type):
            computed[a.name] = _generator(arguments.get(a.name))
    positional = [a.name for a in schema.arguments if not a.kwarg_only and a.name in computed]
    keywords = {name: value for name, value in computed.items() if name not in positional}
    with torch.no_grad():
        results = op(*(computed[name] for name in positional), **keywords)
    written: dict[str, Any] = {}
    for a in schema.arguments:
        if a.alias_info is not None and a.alias_info.is_write and arguments.get(a.name) is not None:
            _write_back(arguments[a.name], computed[a.name])
            written.update(dict.fromkeys(a.alias_info.before_set, arguments[a.name]))
    several = len(schema.returns) != 1
    returned = [
        _map(value, _to_device) if r.alias_info is None else next(written[s] for s in r.alias_info.before_set)
        for r, value in zip(schema.returns, (results or ()) if several else (results,), strict=True)
    ]
    return returned[0] if not several else tuple(returned) if returned else None


def _returns_views(op: OpOverload) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def _warn_once(op: OpOverload) -> None:
    if op in _warned:
        return
    _warned.add(op)
    warnings.warn(
        f"{op} runs on the CPU ({user_line()}): it has no rule and no decomposition, and lazytpu.options.cpu_fallback "
        "is on. Each call waits for the device and copies its tensors both ways.",
        CpuFallbackWarning,
        stacklevel=3,
    )


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    return [_map(v, function) for v in value] if isinstance(value, list | tuple) else function(value)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == "tpu":
        return value.detach().cpu()
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "tpu" else value


def _to_device(value: Any) -> Any:
    return value.to("tpu") if isinstance(value, torch.Tensor) else value


def _generator(generator: torch.Generator | None) -> torch.Generator:
    """Return a CPU generator, seeded by the device's next draw."""
    seed, offset = draw(generator)
    return CpuGenerator("cpu").manual_seed((seed + offset * 0x9E3779B97F4A7C15) % (1 << 63))


def _write_back(target: Any, computed: Any) -> None:
    if isinstance(target, list | tuple):
        for t, c in zip(target, computed, strict=True):
            _write_back(t, c)
    elif target.device.type == "tpu":
        if target.shape != computed.shape:  # an out= of another size
            torch.ops.aten.resize_.default(target, list(computed.shape))
        target.copy_(computed)
