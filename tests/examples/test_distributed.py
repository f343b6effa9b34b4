"""The examples of several processes, by their lines in docs/examples.md, against one process or gloo."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests import zygote
from tests.compiling import as_flags
from tests.distributed.ranks import environment, free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs/examples.md", ROOT / "docs/distributed.md"]
LINES = {line for page in PAGES for line in re.findall(r"^torchrun .*", page.read_text(), re.MULTILINE)}
EXAMPLES = {path.name for path in (ROOT / "examples/distributed").glob("*.py")}
FLAGS = {"XLA_FLAGS": as_flags()}
SMALL = ["--layers", "1", "--width", "16", "--heads", "2"]

pytestmark = pytest.mark.xdist_group("distributed")  # they use all cores, as those tests do


def line_of(example: str) -> list[str]:
    """The arguments of torchrun in the documented line for an example."""
    (line,) = (line for line in LINES if f"/{example}" in line)
    return shlex.split(line.partition("#")[0])[1:]


def test_every_example_has_a_command():
    assert len(LINES) == len(EXAMPLES)
    for example in EXAMPLES:
        assert line_of(example)


def losses(printed: str) -> dict[int, float]:
    """Return the printed loss of each step."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", printed)}


def in_ranks(example: str, *more: str, size: int = 2, folder: Path = ROOT) -> dict[int, float]:
    """Run an example in `size` processes with the environment of torchrun and return its losses."""
    script = line_of(example)
    options = script[script.index(f"examples/distributed/{example}") + 1 :]
    arguments = [str(ROOT / "examples/distributed" / example), *options]
    port = free_port()
    ranks = [
        zygote.Process([*arguments, *more], env=environment(rank, size, port) | FLAGS, cwd=folder)
        for rank in range(size)
    ]
    outputs = [rank.communicate(300) for rank in ranks]
    for rank, (_, complaints) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, complaints[-4000:]
    return losses("".join(printed for printed, _ in outputs))


def test_ddp_trains_as_on_gloo():
    assert in_ranks("ddp.py") == pytest.approx(in_ranks("ddp.py", "cpu"), rel=1e-2)


def test_fsdp2_trains_as_on_gloo():
    assert in_ranks("fsdp2.py") == pytest.approx(in_ranks("fsdp2.py", "cpu"), rel=1e-2)


@pytest.mark.long  # docs/examples.md has the same command
def test_script_is_compiled_for_a_pod():
    done = zygote.run(["examples/pod.py", "v5e:8x8"], cwd=ROOT, env=os.environ | FLAGS, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.match(r"one program for 64 devices: \d+ us, \d+ exposed", done.stdout)
    assert re.search(r"^  [a-z-]+ of [\d,]+ bytes: the core waits [\d.]+ us$", done.stdout, re.MULTILINE)


def llama_on_the_cpu(folder: Path, steps: int) -> dict[int, float]:
    """Train Llama in one process on the CPU and return its losses."""
    arguments = ["--device", "cpu", "--tensor-parallel", "1", *SMALL, "--steps", str(steps)]
    return in_ranks("train_llama.py", *arguments, size=1, folder=folder)


@pytest.mark.long
def test_llama_continues_after_a_rank_was_killed(tmp_path: Path):
    """torchrun forks the ranks, which run the script by `runpy` with tensor parallelism. The losses equal an
    uninterrupted process. A third run, with sharded data, continues from the last checkpoint."""
    arguments = line_of("train_llama.py")
    at = arguments.index("examples/distributed/train_llama.py")
    command = ["-m", "torch.distributed.run", "--master-port", str(free_port()), *arguments[:at]]
    command += ["--run-path", "--start-method", "fork"]  # from a process that has imported torch and lazytpu
    command += ["tests/distributed/killing.py", *arguments[at:]]
    command += [*SMALL, "--steps", "4", "--every", "2", "--checkpoints", str(tmp_path / "out/llama")]
    done = zygote.run(command, cwd=ROOT, env=os.environ | FLAGS, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rank 1 was killed or crashed" in done.stderr
    assert "damaged" not in done.stderr
    assert [int(step) for step in re.findall(r"step (\d+)", done.stdout)] == [1, 2, 3, 4]
    (tmp_path / "alone").mkdir()
    expected = llama_on_the_cpu(tmp_path / "alone", 6)
    assert losses(done.stdout) == pytest.approx({step: expected[step] for step in range(1, 5)}, rel=1e-3)
    resharded = in_ranks("train_llama.py", "--tensor-parallel", "1", *SMALL, "--steps", "6", folder=tmp_path)
    assert resharded == pytest.approx({step: expected[step] for step in (5, 6)}, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("example", ["pipeline.py", "train_accelerate.py", "train_trainer.py"])
def test_losses_equal_a_single_process(example: str):
    alone = in_ranks(example, "cpu", size=1)
    assert len(alone) >= 3
    assert in_ranks(example) == pytest.approx(alone, rel=1e-3)


@pytest.mark.long
def test_trainer_in_a_group_of_one_process():
    """Under torchrun the Trainer creates a group of one process and wraps the model in DistributedDataParallel."""
    actual, alone = (in_ranks("train_trainer.py", *device, size=1) for device in ([], ["cpu"]))
    assert actual == pytest.approx(alone, rel=1e-3)
    assert len(actual) == 8
