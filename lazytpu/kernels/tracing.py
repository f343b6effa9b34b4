"""Tracing a JAX function once for the shapes and dtypes of its operands: its results, its body, and its key.

The key is the function's name and a digest of its jaxpr and of the StableHLO it is lowered to, including captured
values. Names and addresses do not identify a function. So a changed function is another kernel in every cache, and
every process finds an unchanged one again.
"""

from __future__ import annotations

import gc
import hashlib
import keyword
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend import core

from lazytpu.ir import bodies
from lazytpu.kernels import errors
from lazytpu.kernels.jaxprs import equations
from lazytpu.kernels.pallas_calls import WIDE, for_platform, is_wide
from lazytpu.options import options
from lazytpu.passes.target import Target
from lazytpu.runtime.xla import client, jax_private
from lazytpu.runtime.xla.jax_functions import lower_jax_function

Operand = tuple[np.dtype[Any], tuple[int, ...], bool]
"""dtype, shape, and whether it is a Python number, whose type yields to the arrays' types."""

_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Traced:
    """A function traced for given operands: the key of its body, and the (dtype, shape) of its results."""

    key: str
    results: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]


def trace(
    name: str, function: Callable[..., Any], operands: Sequence[Operand], check: bool = True, rules: str = ""
) -> Traced:
    """Trace a function of arrays that returns a list of arrays; with `check`, verify that it keeps no array. `rules`
    are part of the key.

    64-bit types are on if an operand has one, so that none becomes a 32-bit type; otherwise jax's configuration
    decides. Raises TypeError, ValueError or RuntimeError for a function that is not a pure JAX function, and
    NotImplementedError if it cannot be lowered.
    """
    wide = bool(jax.config.read("jax_enable_x64")) or any(dtype in WIDE for dtype, _, _ in operands)
    with jax.enable_x64(wide):
        closed = _trace(name, function, operands, check)
        results = tuple((np.dtype(a.dtype), tuple(a.shape)) for a in closed.out_avals)
        lower = partial(_lowered, name, closed, [(dtype, shape) for dtype, shape, _ in operands], wide)
        platform, body = _body(lower)
        digest = hashlib.sha256(f"{platform} {wide}\n{_ADDRESS.sub('', str(closed))}\n".encode())
        digest.update(body + rules.encode())
    key = f"{identifier(name)}_{digest.hexdigest()[:16]}"
    bodies.provide(key, platform, body, lower)
    return Traced(key, results)


def _body(lower: Callable[[str], bytes]) -> tuple[str, bytes]:
    """Return the platform whose body identifies a kernel, and the body. It is the platform of `options.target`, if the
    function can be lowered for it: a process that records for a TPU then has the keys of a process on it."""
    here = client.platform()
    platform = here if options.target is None else Target.parse(options.target).platform
    if platform != here:
        with suppress(ValueError):  # such a program is refused for the target, and runs here
            return platform, lower(platform)
    return here, lower(here)


def identifier(name: str) -> str:
    """Return a name as part of the names of ops and functions: `<lambda>` becomes `anonymous`, since `lambda` is a
    keyword."""
    word = re.sub(r"\W+", "_", name.replace("<lambda>", "anonymous"), flags=re.ASCII).strip("_")
    word = f"{word}_" if keyword.iskeyword(word) else word
    return word if word[:1].isalpha() else f"kernel_{word}".rstrip("_")


def _trace(name: str, function: Callable[..., Any], operands: Sequence[Operand], check: bool) -> Any:
    traces: list[weakref.ref[Any]] = []

    def flat(*leaves: Any) -> list[Any]:
        if leaves:
            traces.append(weakref.ref(jax_private.trace_of(leaves[0])))
        results = function(*leaves)
        for value in results:
            if not isinstance(value, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
                raise _Foreign(value)
        if not results:
            raise _Nothing
        return results

    arguments = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for dtype, shape, weak in operands]
    jax_private.imagine_chip()
    jax_private.discharge_calls_in_part()
    try:
        traced = jax.jit(flat, keep_unused=True).trace(*arguments)
    except _Foreign as error:
        raise errors.foreign_result(name, error.value) from None
    except _Nothing:
        raise TypeError(f"{name} returned no array: a kernel has to return its results") from None
    except Exception as error:
        raise errors.untraceable(name, error) from error
    if _is_open(traced.jaxpr, len(operands)):
        raise errors.escaped(name)
    closed = jax_private.without_references(traced.jaxpr)
    _check_effects(name, closed)
    # The rules of custom derivatives refer to the trace as long as the jaxpr lives, and so does `pl.kernel` since jax
    # 0.12. An array that such a function keeps is reported at its first use.
    if check and not any(e.primitive.name.startswith(("custom_", "mpmd_map")) for e in equations(closed.jaxpr)):
        _check_leaks(name, traces)
    return jax_private.without_dead_code(closed)


class _Nothing(Exception):
    """The function returned nothing."""


class _Foreign(Exception):
    """The function returned something that is no array."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _is_open(closed: Any, operands: int) -> bool:
    """Whether a jaxpr uses a tracer of another trace: it then has more parameters than operands, or undefined
    variables."""
    jaxpr = closed.jaxpr
    if len(jaxpr.invars) != operands or len(closed.consts) != len(jaxpr.constvars):
        return True
    defined = {*jaxpr.constvars, *jaxpr.invars}
    for equation in jaxpr.eqns:
        if any(not isinstance(atom, core.Literal) and atom not in defined for atom in equation.invars):
            return True
        defined.update(equation.outvars)
    used = [atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)]
    return not defined.issuperset(used)


def _check_effects(name: str, closed: Any) -> None:
    callbacks = {e.primitive.name for e in equations(closed.jaxpr)} & set(_CALLBACKS)
    if callbacks:
        raise errors.side_effect(name, ", ".join(sorted(callbacks)))
    if closed.effects:
        raise errors.side_effect(name, ", ".join(map(str, closed.effects)))


def _check_leaks(name: str, traces: Sequence[weakref.ref[Any]]) -> None:
    """Raise RuntimeError if a tracer outlives the function's trace. Most traces die at once; a collection (0.1 s)
    distinguishes a leak from a reference cycle."""
    if any(trace() is not None for trace in traces):
        gc.collect()
        if any(trace() is not None for trace in traces):
            raise errors.leaked(name)


def _lowered(name: str, closed: Any, operands: list[Any], wide: bool, platform: str) -> bytes:
    """Return the body for a platform. Raises ValueError when the function cannot be lowered for it."""
    with jax.enable_x64(wide):
        if platform == "tpu" and is_wide(closed):
            raise ValueError(
                f"{name} cannot be lowered for 'tpu': its Pallas kernel computes with 64-bit numbers, which Mosaic "
                "lacks. They are on because an operand has 64 bits: convert it before the call (indices by x.int()), "
                "or call the kernel inside of `with jax.enable_x64(False):`"
            )
        function = core.jaxpr_as_fun(for_platform(closed, platform))
        raw = None if platform == client.platform() else {"gpu": "cuda"}.get(platform, platform)
        try:
            return lower_jax_function(function, operands, raw, wide)[0]
        except Exception as error:
            raise ValueError(f"{name} cannot be lowered for {platform!r}: {error}") from error
