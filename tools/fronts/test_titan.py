"""TorchTitan's trainer on the device, by the launcher of examples/titan, beside the same training on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LLAMA = ("--module", "llama3", "--config", "llama3_debugmodel")
MOE = ("--module", "deepseek_v3", "--config", "deepseek_v3_debugmodel")
SIZES = ("--training.seq_len", "128", "--training.local_batch_size", "2", "--checkpoint.enable")
TWO = ("--parallelism.spmd_backend", "partial_dtensor")
TENSOR_PARALLEL = (*TWO, "--parallelism.tensor_parallel_degree", "2")
EXPERT_PARALLEL = (*TWO, "--parallelism.expert_parallel_degree", "2", "--training.disable_cuda_graphs")
SECONDS = 1800  # a run of minutes on a quiet machine


FOLDER = TemporaryDirectory(prefix="titan")


@cache
def assets() -> Path:
    """Write the tokenizer and the data set."""
    script, texts = ROOT / "examples/titan/assets.py", sorted((ROOT / "docs").glob("*.md"))
    subprocess.run([sys.executable, script, FOLDER.name, *texts], check=True)
    return Path(FOLDER.name)


def launch(device: str, processes: int, options: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """Run Titan with checkpoints in `folder`, and return the lines of its steps."""
    lines = folder / f"{device}.jsonl"
    lines.unlink(missing_ok=True)
    data = ("--hf_assets_path", str(assets() / "tokenizer"), "--dataloader.dataset_path", str(assets() / "c4_test"))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    script = (str(ROOT / "tools/fronts/titan_run.py"), device, str(lines))
    ran = subprocess.run(
        [*torchrun, *script, *SIZES, *data, *options, "--dump_folder", str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "LAZYTPU_CACHE_DIR": str(assets() / "programs")},
        cwd=FOLDER.name,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


@cache
def seed(model: tuple[str, ...]) -> Path:
    """Return a checkpoint of initial weights, which Titan makes on the CPU for every device."""
    folder = Path(mkdtemp(dir=assets()))
    launch("tpu", 1, (*model, "--checkpoint.create_seed_checkpoint"), folder)
    return folder / "checkpoint/step-0"


def train(device: str, processes: int, model: tuple[str, ...], *options: str, steps: int = 6) -> list[dict[str, Any]]:
    folder = Path(mkdtemp(dir=assets()))
    begin = ("--training.steps", str(steps), "--checkpoint.initial_load_path", str(seed(model)))
    return launch(device, processes, (*model, *begin, *options), folder)


reference = cache(lambda *arguments, **keywords: train("cpu", *arguments, **keywords))


def losses(steps: list[dict[str, Any]]) -> list[float]:
    return [step["loss"] for step in steps]


def compare(ours: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float) -> None:
    assert [step["step"] for step in ours] == [step["step"] for step in expected]
    assert losses(ours) == pytest.approx(losses(expected), abs=tolerance)
    assert ours[-1]["loss"] < ours[0]["loss"]
    assert ours[-1]["cpu_fallbacks"] == 0


REPLICAS = ("--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree")
LAYOUTS: dict[str, tuple[int, tuple[str, ...], float]] = {
    "FSDP": (2, TWO, 3e-4),
    "DDP": (2, (*TWO, *REPLICAS, "1"), 3e-4),
    "HSDP": (4, (*TWO, *REPLICAS, "2"), 3e-4),
    "FSDP, gradients of two batches": (2, (*TWO, "--training.global_batch_size", "8"), 3e-4),
    "FSDP in float32": (2, (*TWO, "--training.mixed_precision_param", "float32"), 1e-5),
    "tensor parallel": (2, TENSOR_PARALLEL, 8e-4),
    "tensor parallel, whole sequences": (2, (*TENSOR_PARALLEL, "--parallelism.no-enable_sequence_parallel"), 8e-4),
    "tensor parallel and FSDP": (4, (*TENSOR_PARALLEL, "--parallelism.data_parallel_shard_degree", "2"), 8e-4),
}
"""Processes, options, and by how much losses may differ. Titan's debug model checkpoints activations selectively."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    processes, options, tolerance = LAYOUTS[layout]
    compare(train("tpu", processes, LLAMA, *options), reference(processes, LLAMA, *options), tolerance)


def test_compiled_blocks() -> None:
    compare(train("tpu", 2, LLAMA, *TWO, "--compile.enable"), reference(2, LLAMA, *TWO), 3e-4)


def test_resumed_training_goes_on_as_before(tmp_path: Path) -> None:
    options = (*LLAMA, *TWO, "--training.steps", "6", "--checkpoint.interval", "3")
    whole = launch("tpu", 2, (*options, "--checkpoint.initial_load_path", str(seed(LLAMA))), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint/step-6")
    resumed = launch("tpu", 2, options, tmp_path)
    assert [step["step"] for step in resumed] == [4, 5, 6]
    assert losses(resumed) == pytest.approx(losses(whole)[3:], abs=1e-4)


def test_mixture_of_experts() -> None:
    """Beside the CPU in float32: in bfloat16 a last bit sends a token to another expert, and losses part by 1e-3."""
    float32 = ("--training.mixed_precision_param", "float32")
    steps = train("tpu", 1, MOE, *float32, steps=20)
    compare(steps[:10], reference(1, MOE, *float32, steps=20)[:10], 3e-4)
    assert steps[-1]["compiles"] - steps[0]["compiles"] <= 8


def test_expert_parallel() -> None:
    compare(train("tpu", 2, MOE, *EXPERT_PARALLEL), reference(2, MOE, *EXPERT_PARALLEL), 8e-4)


def test_utilisation_is_of_a_tpu() -> None:
    """Titan knows the peak of the device by its name."""
    import torch
    from torchtitan.tools.utils import get_peak_flops

    assert get_peak_flops(torch.tpu.get_device_name()) == 918e12
