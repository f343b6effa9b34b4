"""Exported programs compute torch's results on the CPU: in plain JAX, and loaded again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import lazytpu
from lazytpu.exporting.trees import flatten
from tests.exporting.models import CASES

HERE = Path(__file__).parent


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers, in JAX's order."""
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export each case into a folder, and run it with plain JAX in a separate process."""
    folder = tmp_path_factory.mktemp("exports")
    for name, case in CASES.items():
        module, args, kwargs = case.make()
        lazytpu.export(module, args, kwargs).save(folder / name / "program")
        flat = [t.float() if t.dtype is torch.bfloat16 else t for t in tensors((args, kwargs))]
        np.savez(folder / name / "arguments.npz", *(t.numpy() for t in flat))
    command = [sys.executable, str(HERE / "plain_jax.py"), *(str(folder / name) for name in CASES)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def on_the_cpu(name: str, program: Path) -> tuple[Any, list[torch.Tensor]]:
    """Return the results of a case on the CPU, and the tensors that the call overwrote, in the order of the
    manifest."""
    module, args, kwargs = CASES[name].make()
    signature = json.loads((program / "manifest.json").read_text())["signature"]
    with torch.no_grad():
        results = module(*args, **kwargs)
    inputs = dict(zip([leaf["name"] for leaf in signature["inputs"]], flatten((args, kwargs))[0], strict=True))
    buffers = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return results, [
        *(buffers[key] for key in signature["new_weights"]),
        *(inputs[key] for key in signature["new_inputs"]),
    ]


def assert_close(name: str, found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    tolerance = CASES[name].tolerance
    for result, tensor in zip(found, wanted, strict=True):
        torch.testing.assert_close(result.cpu().to(tensor.dtype), tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_plain_jax_computes_the_results(name: str, exports: Path):
    results, overwritten = on_the_cpu(name, exports / name / "program")
    with np.load(exports / name / "results.npz") as saved:
        arrays = [torch.from_numpy(np.array(saved[key])) for key in saved.files]
    assert_close(name, arrays, [*tensors(results), *overwritten])


@pytest.mark.parametrize("name", CASES)
def test_loaded_program_computes_the_results(name: str, exports: Path):
    wanted, overwritten = on_the_cpu(name, exports / name / "program")
    loaded = lazytpu.export.load(exports / name / "program")
    _, args, kwargs = CASES[name].make()
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to("tpu"), (args, kwargs))
    results = loaded(*args, **kwargs)
    leaves, tree = flatten(results)
    wanted_leaves, wanted_tree = flatten(wanted)
    assert (tree, tree.order) == (wanted_tree, wanted_tree.order)
    assert [leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves] == [
        leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in wanted_leaves
    ]
    inputs = dict(zip([leaf.name for leaf in loaded.signature.inputs], flatten((args, kwargs))[0], strict=True))
    changed = [loaded.weights[key] for key in loaded.signature.new_weights]
    changed += [inputs[key] for key in loaded.signature.new_inputs]
    assert_close(name, [*tensors(results), *changed], [*tensors(wanted), *overwritten])


def test_signature_lists_weights_and_arguments(exports: Path):
    training, evaluated, cache = (
        lazytpu.export.load(exports / name / "program").signature for name in ("training", "convolution", "cache")
    )
    assert training.new_weights == ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert evaluated.new_weights == () and "norm.num_batches_tracked" not in [w.name for w in evaluated.weights]
    assert (cache.new_weights, cache.new_inputs) == (("keys", "length"), ("total",))
