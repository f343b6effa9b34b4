"""`lazytpu.export.load`: a saved program as a function of "tpu" tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lazytpu.exporting import safetensors
from lazytpu.exporting.folder import FORMAT, MANIFEST, digest
from lazytpu.exporting.signature import SEED_TENSOR, Constant, Signature, Tensor, numpy_dtype
from lazytpu.exporting.trees import flatten
from lazytpu.frontend.ops import exported as op
from lazytpu.frontend.tensors import DEVICE
from lazytpu.runtime.xla import client, portable
from lazytpu.runtime.xla.loaded import EXACT, PROGRAMS, Program


class Loaded:
    """A program loaded from a folder, called like the exported module, on "tpu" tensors. A call is one op of the trace.
    It updates the weights and arguments that the module would have updated.

    `weights` are its tensors on the device by name, `manifest` is the folder's manifest.
    """

    def __init__(
        self, digest: str, signature: Signature, weights: dict[str, torch.Tensor], manifest: Mapping[str, Any]
    ) -> None:
        self.signature = signature
        self.weights = weights
        self.manifest = manifest
        self._digest = digest

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results, for arguments of the exported shapes and dtypes. A program that draws random numbers
        takes a new seed from the device's generator.

        Raises TypeError or ValueError for other arguments, naming the argument.
        """
        return self._call(None, args, kwargs)

    def seeded(self, seed: int) -> Callable[..., Any]:
        """Return the function for this seed, from 0 to 2**64 - 1. It draws the same numbers as JAX does with the words
        of the seed, [seed >> 32, seed & 0xffffffff]."""
        if not self.signature.seeded:
            raise ValueError("this program draws no random numbers, so it takes no seed")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"expected a seed from 0 to 2**64 - 1, got {seed}")
        words = torch.tensor([seed >> 32, seed & 0xFFFFFFFF], dtype=torch.int64, device="cpu")
        return lambda *args, **kwargs: self._call(words, args, kwargs)

    def _call(self, seed: torch.Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = self.signature
        inputs = _checked(signature, args, kwargs)
        arguments = [self.weights[weight.name] for weight in signature.weights]
        if signature.seeded:
            words = torch.randint(1 << 32, (2,), dtype=torch.int64, device=DEVICE) if seed is None else seed.to(DEVICE)
            arguments.append(words.to(getattr(torch, SEED_TENSOR.dtype)))
        results = op.call(
            [*arguments, *inputs], self._digest, [(tensor.dtype, tensor.shape) for tensor in signature.results]
        )
        new = iter(results[len(results) - len(signature.new_weights) - len(signature.new_inputs) :])
        by_name = dict(zip([tensor.name for tensor in signature.tensors], inputs, strict=True))
        with torch.no_grad():
            for name in signature.new_weights:
                self.weights[name].copy_(next(new))
            for name in signature.new_inputs:
                by_name[name].copy_(next(new))
        returned = iter(results)
        leaves = [leaf.value if isinstance(leaf, Constant) else next(returned) for leaf in signature.outputs]
        return signature.output_tree.build(iter(leaves))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{tensor.name}: {tensor.kind}" for tensor in self.signature.tensors)
        return f"<{self.manifest['name']}({arguments}), loaded, with {len(self.weights)} weights>"


def _checked(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments. Raises TypeError or ValueError for arguments that do not match the
    signature."""
    leaves, tree = flatten((args, kwargs))
    if tree != signature.input_tree:
        raise TypeError(f"expected the arguments (args, kwargs) {signature.input_tree}, * for a value; got {tree}")
    tensors: list[torch.Tensor] = []
    for leaf, value in zip(signature.inputs, leaves, strict=True):
        if isinstance(leaf, Tensor):
            _check_tensor(leaf, value)
            tensors.append(value)
        elif not leaf.agrees(value):
            raise ValueError(
                f"argument '{leaf.name}' was {leaf.value!r} when the program was exported, and is part of it; got "
                f"{value!r}. Export the module again for another value"
            )
    return tensors


def _check_tensor(expected: Tensor, value: Any) -> None:
    want = f"argument '{expected.name}': expected a tensor {expected.kind} on tpu, got"
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{want} {type(value).__name__}")
    kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if kind != expected.kind:
        raise ValueError(f"{want} {kind}. A program is exported for one dtype and shape")
    if value.device.type != DEVICE.type:
        raise ValueError(f'{want} one on {value.device}; move it with .to("tpu")')


def load(folder: Path) -> Loaded:
    """Load the program in a folder. Raises FileNotFoundError, and ValueError for damaged files and newer formats."""
    manifest = _manifest(folder)
    signature = _signature(folder, manifest)
    try:
        version, platforms = str(manifest["stablehlo"]), dict(manifest["platforms"])
        flags = {platform: _options(about["compiler_options"]) for platform, about in platforms.items()}
        paths = {platform: _path(folder, about["artifact"]) for platform, about in platforms.items()}
        files, weights_file = dict(manifest["files"]), _path(folder, manifest["weights"])
        for path in (*paths.values(), weights_file):
            _check_file(path, files[path.name])
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"{MANIFEST} lacks something: {type(error).__name__}: {error}") from error
    if client.platform() not in paths:
        raise ValueError(
            f"the program in {folder} was exported for {' and '.join(paths)}, and this process runs on "
            f"{client.platform()}; export it again with platforms={client.platform()!r}"
        )
    artifacts = {platform: path.read_bytes() for platform, path in paths.items()}
    for data in artifacts.values():
        try:
            portable.check_artifact(data, version)
        except ValueError as error:
            raise ValueError(f"cannot load the program in {folder}: {error}") from error
    weights = safetensors.read(weights_file)
    kinds = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in weights.items()}
    if kinds != {tensor.name: (tensor.dtype, tensor.shape) for tensor in signature.weights}:
        raise _damaged(folder, "its weights are not those of the manifest")
    results = tuple([(numpy_dtype(tensor.dtype), tensor.shape) for tensor in signature.results])
    contents = [
        json.dumps(flags, sort_keys=True).encode(),
        *(name.encode() + artifacts[name] for name in sorted(artifacts)),
    ]
    key = hashlib.sha256(b"".join(contents)).hexdigest()
    PROGRAMS.setdefault(key, Program(str(manifest["name"]), artifacts, flags, results))
    return Loaded(key, signature, {name: weight.to(DEVICE) for name, weight in weights.items()}, manifest)


def _signature(folder: Path, manifest: Mapping[str, Any]) -> Signature:
    try:
        return Signature.from_json(manifest["signature"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(folder, f"{MANIFEST} has no signature: {type(error).__name__}: {error}") from error


def _options(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of XLA that a program needs besides the options of all lazytpu programs."""
    return {name: value for name, value in written.items() if name not in EXACT}


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} has no {MANIFEST}: expected a folder that lazytpu.export saved") from error
    except ValueError as error:
        raise _damaged(folder, f"{MANIFEST} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise _damaged(folder, f"{MANIFEST} names no format")
    if manifest["format"] > FORMAT:
        made_by = manifest.get("made_by", {}).get("lazytpu", "a later version")
        raise ValueError(
            f"{folder} has format {manifest['format']}, written by lazytpu {made_by}; this version reads {FORMAT} and "
            "earlier. Update lazytpu"
        )
    return manifest


def _path(folder: Path, name: Any) -> Path:
    if not isinstance(name, str) or Path(name).name != name:
        raise _damaged(folder, f"{MANIFEST} names a file {name!r}")
    return folder / name


def _check_file(path: Path, about: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise _damaged(path.parent, f"{path.name} is missing")
    size = path.stat().st_size
    if size != about["bytes"]:
        raise _damaged(path.parent, f"{path.name} has {size:,} bytes instead of {about['bytes']:,}")
    if digest(path) != about["sha256"]:
        raise _damaged(path.parent, f"{path.name} is not what was written (its SHA-256 differs)")


def _damaged(folder: Path, how: str) -> ValueError:
    return ValueError(f"the exported program in {folder} is damaged: {how}. Save it again")
