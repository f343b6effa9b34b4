"""The helper's work on one module: compile it into the cache on disk, where the requesting process finds it. An
executable that exceeds `options.cache_limit` is sent instead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import wire
from lazytpu.runtime.tpu import topologies
from lazytpu.runtime.xla import client, host_functions
from lazytpu.runtime.xla.mlir import count_ops, ir
from lazytpu.runtime.xla.module_options import options_of
from lazytpu.runtime.xla.signature import signature


class Unfit(RuntimeError):
    """This process cannot compile the requested program. The requesting process has to."""


@dataclass(frozen=True, slots=True)
class Provided:
    """A program on disk, or its cache entry as `payload` and `entry`. `milliseconds` is its compile time, None when it
    was already on disk."""

    milliseconds: float | None
    payload: bytes = b""
    entry: Mapping[str, Any] | None = None


def provide(module: ir.Module, key: str, *, name: str, functions: list[str], about: Mapping[str, Any]) -> Provided:
    """Store the program of a module under its key. If another process is compiling it, wait for that one. `functions`
    are the host functions that the program calls. `about` goes into the list of entries in progress.

    Raises CompileError when XLA refuses the module. Raises Unfit if the program would have another key here, as in
    another environment, or if it cannot be serialized.
    """
    if not host_functions.available(functions):
        raise Unfit(f"it calls {', '.join(functions)}, and the process that compiles has not all of them")
    here = programs.program_key(module)
    if here != key:
        raise Unfit(f"the process that compiles would find it as {here[:16]}, and not as {key[:16]}")
    described = {"name": name, "ops": count_ops(module), **about}
    with store().locked(programs.KIND, key, described):
        if store().has(programs.KIND, key):
            return Provided(None)
        start = time.perf_counter()
        payload = _compiled(module, name)
        elapsed = 1e3 * (time.perf_counter() - start)
        entry = programs.describe(name, signature(module), functions, elapsed)
        if payload is None:
            raise Unfit(f"programs of {client.platform()} cannot be stored")
        if store().put(programs.KIND, key, payload, entry):
            return Provided(elapsed)
        if len(payload) > wire.LARGEST:
            raise Unfit(f"it could not be written to {store().root}, and is too large to be sent")
        return Provided(elapsed, payload, entry)


def _compiled(module: ir.Module, name: str) -> bytes | None:
    if client.AIM:
        return topologies.compile_ahead(module, name=name, options=programs.OPTIONS)
    options = {**options_of(module), **programs.OPTIONS}
    return client.serialize(client.compile_module(module, name=name, options=options))
