"""Errors for functions that cannot be custom kernels, each with advice. All are raised at the call."""

from __future__ import annotations

import re
from typing import Any

import jax


class SideEffectError(RuntimeError):
    """A function has an effect besides computing its results."""


def untraceable(name: str, error: Exception) -> Exception:
    """Return the error for a function that JAX could not trace."""
    if isinstance(error, SideEffectError):
        return error
    text = re.split(r"\n\n|\nThe error occurred while tracing|\nSee https", str(error).strip())[0]
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return escaped(name)
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return TypeError(
            f"{name} is not a JAX function: it hands an array that is traced, and has no values, to numpy or another "
            f"library. Write it with jax.numpy (np.exp(x) becomes jnp.exp(x)).\n{text}"
        )
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return TypeError(
            f"{name}: the function's Python code depends on the values of an array, which is traced and has none. Use "
            f"jnp.where or jax.lax.cond for it, or pass a number of Python, which is part of the program.\n{text}"
        )
    if isinstance(error, TypeError) and _speaks_of_torch(error):
        return TypeError(
            f"{name} is not a JAX function: it calls torch on JAX's arrays. Write it with jax.numpy, or record the "
            f"torch ops as they are, outside of the kernel.\n{text}"
        )
    return _again(name, error)


def _again(name: str, error: Exception) -> Exception:
    """Return an error that names the kernel, of the same class where that takes a message."""
    text = f"{name}: {error}"
    kind = type(error) if type(error) in (TypeError, ValueError, NotImplementedError, IndexError, KeyError) else None
    return (kind or RuntimeError)(text)


def _speaks_of_torch(error: Exception) -> bool:
    text = str(error)
    return "must be Tensor" in text or "torch." in text or ("Tracer" in text and "Tensor" in text)


def foreign_result(name: str, value: Any) -> TypeError:
    """Return the error for a result that is no array."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    advice = (
        "it is computed by torch, not by JAX: write the function with jax.numpy"
        if "torch" in kind
        else ("a kernel returns arrays, or tuples, lists, dicts and registered pytrees of them")
    )
    return TypeError(f"{name} returned a {kind}: {advice}")


def side_effect(name: str, effect: str) -> SideEffectError:
    """Return the error for a function with a side effect."""
    return SideEffectError(
        f"{name} has a side effect ({effect}), and a kernel is part of a program that is compiled once, cached "
        "on disk, and may run any number of times. Remove it from the function, and "
        "return what you want to look at"
    )


def opaque(name: str, what: str) -> TypeError:
    """Return the error for a function that captures an object whose changes cannot be noticed."""
    return TypeError(
        f"{name} may read {what}, which it captures. A captured object is part of the kernel, and Python does not show "
        "whether this one has changed. Pass what the function needs of it as an argument"
    )


def escaped(name: str) -> RuntimeError:
    """Return the error for a function that uses an array of another trace."""
    return RuntimeError(
        f"{name} uses an array that an earlier call of it, or of another traced function, kept in a global, a closure "
        "or an object. It has no values there. Return what is needed later as a result"
    )


def leaked(name: str) -> RuntimeError:
    """Return the error for a function that keeps a traced array."""
    return RuntimeError(
        f"{name} keeps an array that is traced in a global, a closure or an object, where it outlives the call; it has "
        "no values there. Return it as a result instead"
    )
