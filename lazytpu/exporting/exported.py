"""The result of `lazytpu.export`: a program with its weights, as StableHLO and as a function of JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lazytpu.exporting import safetensors
from lazytpu.exporting.emission import Emitted
from lazytpu.exporting.folder import FORMAT, MANIFEST, WEIGHTS, digest, replacing
from lazytpu.exporting.signature import Signature, Tensor, numpy_dtype
from lazytpu.lowering.text import stablehlo_text
from lazytpu.runtime.xla import portable
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.loaded import EXACT
from lazytpu.runtime.xla.mlir import ir
from lazytpu.version import VERSION

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported program.

    `platforms` are the platforms it was lowered for. For each of them, `custom_calls` lists the functions outside
    StableHLO that it calls, and `compiler_options` the options of XLA under which it rounds as lazytpu does, for
    `jax.jit(..., compiler_options=)`. `weights` are the module's own tensors by name, so `save` writes their current
    values. `needs_x64` says that an argument or result has 64 bits, which JAX supports only under
    `jax.enable_x64(True)`.
    """

    name: str
    signature: Signature
    weights: Mapping[str, torch.Tensor]
    programs: Mapping[str, Emitted]

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms, by JAX's names."""
        return tuple(self.programs)

    @property
    def stablehlo(self) -> str:
        """The text of the program for the first of `platforms`."""
        return self.text()

    @property
    def custom_calls(self) -> dict[str, tuple[str, ...]]:
        """The functions outside StableHLO that the program calls, by platform."""
        return {platform: program.custom_calls for platform, program in self.programs.items()}

    @property
    def compiler_options(self) -> dict[str, dict[str, Any]]:
        """The options of XLA under which the program rounds as in lazytpu, by platform."""
        return {platform: {**EXACT, **program.options} for platform, program in self.programs.items()}

    @property
    def needs_x64(self) -> bool:
        """Whether an argument or result has a dtype of 64 bits."""
        return needs_x64(self.signature)

    def text(self, platform: str | None = None) -> str:
        """Return the text of the program for a platform (by default the first). Raises ValueError for other
        platforms."""
        with mlir_context():
            return stablehlo_text(ir.Module.parse(self.bytecode(platform)))

    def bytecode(self, platform: str | None = None) -> bytes:
        """Return the program for a platform as MLIR bytecode, which tools of this version of StableHLO read."""
        return self._program(platform).bytecode

    def artifact(self, version: str | None = None, platform: str | None = None) -> bytes:
        """Return the program for a platform as a portable artifact of a version of StableHLO, for example "1.13.7":
        that version and later ones read it. By default, tools of the last 12 weeks read it.

        Raises ValueError for a version that does not exist, or that lacks an op of the program.
        """
        return portable.artifact(self.bytecode(platform), version or portable.default_version())

    def jax(self, platform: str | None = None, version: str | None = None) -> jax.export.Exported:
        """Return the program for a platform as a function of JAX, `call(weights, *args, **kwargs)`."""
        platform = platform or self.platforms[0]
        args, kwargs = self.signature.jax_arguments(_abstract)
        data = self.artifact(version, platform)
        return portable.jax_export(data, self.name, platform, args, kwargs, self.signature.jax_results(_abstract))

    def save(self, folder: str | Path, *, version: str | None = None) -> Path:
        """Write the program for each platform, the weights and a manifest into `folder`, atomically, and return its
        path. An existing export is replaced. `version` is the StableHLO version of the artifacts.

        Raises FileExistsError for a folder with anything else in it, OSError, and ValueError as `artifact` does.
        """
        path = Path(folder).absolute()
        with replacing(path) as new:
            self._write(new, version or portable.default_version())
        return path

    def _write(self, folder: Path, version: str) -> None:
        platforms: dict[str, Any] = {}
        for platform in self.platforms:
            names = {"artifact": f"{platform}.stablehlo", "jax": f"{platform}.jax"}
            (folder / names["artifact"]).write_bytes(self.artifact(version, platform))
            (folder / names["jax"]).write_bytes(self.jax(platform, version).serialize())
            calls, flags = list(self.custom_calls[platform]), self.compiler_options[platform]
            platforms[platform] = {**names, "custom_calls": calls, "compiler_options": flags}
        safetensors.write(folder / WEIGHTS, self.weights)
        files = {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in sorted(folder.iterdir())}
        manifest = {
            "format": FORMAT,
            "name": self.name,
            "stablehlo": version,
            "made_by": {"lazytpu": VERSION, "torch": torch.__version__, "jax": portable.JAX_VERSION},
            "platforms": platforms,
            "needs_x64": self.needs_x64,
            "weights": WEIGHTS,
            "signature": self.signature.as_json(),
            "files": files,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    def _program(self, platform: str | None) -> Emitted:
        chosen = self.programs.get(platform or self.platforms[0])
        if chosen is None:
            raise ValueError(
                f"this program was exported for {' and '.join(self.platforms)}, not for {platform!r}; export it again "
                f"with platforms=({platform!r},)"
            )
        return chosen

    def __repr__(self) -> str:
        size = sum(weight.nbytes for weight in self.weights.values())
        return (
            f"<{self.name} for {' and '.join(self.platforms)}: {len(self.weights)} weights ({size:,} bytes), "
            f"{len(self.signature.tensors)} arguments, {len(self.signature.results)} results>"
        )


def needs_x64(signature: Signature) -> bool:
    """Whether an argument or result has a dtype of 64 bits."""
    wide = ("float64", "int64", "uint64", "complex128")
    return any(tensor.dtype in wide for tensor in (*signature.arguments, *signature.results))


def _abstract(tensor: Tensor) -> Any:
    import jax

    return jax.ShapeDtypeStruct(tensor.shape, numpy_dtype(tensor.dtype))
