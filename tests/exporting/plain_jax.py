"""Run exported programs in a process that has jax, numpy and safetensors, and not lazytpu or torch.

    python plain_jax.py FOLDER...

Each folder has a program, as `program/`, and the flat arguments of its calls, as `arguments.npz`. The flat results are
written to `results.npz`.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file


def main(folders: list[str]) -> None:
    for folder in map(Path, folders):
        manifest = json.loads((folder / "program/manifest.json").read_text())
        about = manifest["platforms"]["cpu"]
        exported = jax.export.deserialize(bytearray((folder / "program" / about["jax"]).read_bytes()))
        with np.load(folder / "arguments.npz") as saved:
            flat = [saved[name] for name in saved.files]
        with jax.enable_x64(manifest["needs_x64"]):
            weights = load_file(folder / "program" / manifest["weights"])
            leaves = [*jax.tree.leaves(weights), *flat]
            leaves = [jax.numpy.asarray(a, aval.dtype) for a, aval in zip(leaves, exported.in_avals, strict=True)]
            args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
            call = jax.jit(exported.call, compiler_options=about["compiler_options"])
            results = jax.tree.leaves(call(*args, **kwargs))
        np.savez(folder / "results.npz", *[r.astype("float32") if r.dtype == "bfloat16" else r for r in results])
    assert not {"torch", "lazytpu"} & sys.modules.keys()


if __name__ == "__main__":
    main(sys.argv[1:])
