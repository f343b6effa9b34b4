"""Exported StableHLO: portable artifacts, and functions in the format of `jax.export`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax

from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir, stablehlo

JAX_VERSION = str(jax.__version__)
_WINDOW = stablehlo.StablehloCompatibilityRequirement.WEEK_12


def current_version() -> str:
    """Return the version of StableHLO that this process writes and reads."""
    return str(stablehlo.get_current_version())


def default_version() -> str:
    """Return a version that consumers can read if they were updated within the last 12 weeks."""
    return str(stablehlo.get_version_from_compatibility_requirement(_WINDOW))


def artifact(bytecode: bytes, version: str) -> bytes:
    """Serialize a module as a portable artifact of a version of StableHLO. By StableHLO's promise, this version and
    later ones read it for five years.

    Raises ValueError for a version that does not exist, and for one that lacks an op or type of the module.
    """
    oldest, newest = str(stablehlo.get_minimum_version()), current_version()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not _key(oldest) <= _key(version) <= _key(newest):
        raise ValueError(f"expected a version of StableHLO from {oldest} to {newest}, got {version!r}")
    with mlir_context():
        try:
            return bytes(stablehlo.serialize_portable_artifact(ir.Module.parse(bytecode), version))
        except (ValueError, ir.MLIRError) as error:
            raise ValueError(
                f"version {version} of StableHLO lacks what this program needs; {newest} has it: {error}"
            ) from error


def check_artifact(data: bytes, version: str) -> None:
    """Raise ValueError for a portable artifact that is damaged, or that this process cannot read."""
    if _key(version) > _key(current_version()):
        raise ValueError(
            f"it is StableHLO {version}, and this jaxlib reads {current_version()} and earlier; update jax, or export "
            "it again with version="
        )
    with mlir_context() as context:
        try:
            stablehlo.deserialize_portable_artifact(context, data)
        except (ValueError, ir.MLIRError) as error:
            raise ValueError(f"it is not a portable artifact of StableHLO: {error}") from error


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def custom_calls(module: ir.Module) -> list[str]:
    """Return the names of the functions outside StableHLO that a module calls."""
    targets: set[str] = set()

    def look(op: Any) -> ir.WalkResult:
        if "call_target_name" in op.attributes:
            targets.add(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return sorted(targets)


def jax_export(data: bytes, name: str, platform: str, args: Any, kwargs: Any, results: Any) -> jax.export.Exported:
    """Wrap a portable artifact as a function of `jax.export`, for one platform.

    `args`, `kwargs` and `results` are nested `jax.ShapeDtypeStruct`s, whose leaves are the arguments and results of the
    artifact's `@main`, in order.
    """

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), results)

    stand_in.__name__ = name
    with jax.enable_x64(True):
        framed = jax.export.export(jax.jit(stand_in, keep_unused=True), platforms=(platform,))(*args, **kwargs)
    return replace(framed, mlir_module_serialized=data)
