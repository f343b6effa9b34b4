"""`lazytpu-show pack --kernels`: the programs of scripts for a chip, and a first step that compiles nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch

import lazytpu
from lazytpu.inspection import libraries, recorded
from lazytpu.inspection.show import main
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.tpu import ahead
from tests import zygote
from tests.kernels.pallas_kernels import softmax

pytestmark = pytest.mark.xdist_group("recorded")  # the tests share one pack

SCRIPT = """
import sys
import torch
import lazytpu

@lazytpu.pallas.custom_jax_kernel
def doubled(x):
    return x * 2

torch.manual_seed(0)
model = torch.nn.Linear(6, 2).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.arange(24.0).reshape(4, 6).to("tpu")
losses = []
for step in range(2):
    loss = doubled(model(x)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(*losses, lazytpu.metrics()["compiles"], *sys.argv[1:])
"""


def by_zygote(arguments: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return zygote.run(arguments, env=environment)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A script, and the pack of its programs for this machine."""
    folder = tmp_path_factory.mktemp("packed")
    script, pack = folder / "train.py", folder / "pack.zip"
    script.write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "_python", by_zygote)
        assert main(["pack", str(pack), "--kernels", "cpu", "--run", f"{script} 1"]) == 0
    return script, pack


def losses_on_the_cpu() -> list[float]:
    """Return the losses of the script's two steps by torch's CPU."""
    torch.manual_seed(0)
    model, losses = torch.nn.Linear(6, 2), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        loss = (model(torch.arange(24.0).reshape(4, 6)) * 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(script: Path, cache: Path, **variables: str) -> list[float]:
    """Return the losses of the two steps, and the number of programs that they compiled."""
    done = zygote.run([str(script)], env={**os.environ, "LAZYTPU_CACHE_DIR": str(cache), **variables}, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_first_step_with_a_pack_compiles_nothing(packed: tuple[Path, Path], tmp_path: Path, mode: str) -> None:
    (script, pack), cache = packed, tmp_path / "cache"
    assert main(["unpack", str(pack), "--dir", str(cache)]) == 0
    *losses, compiles = run(script, cache, LAZYTPU_MODE=mode)
    assert compiles == 0
    assert losses == pytest.approx(losses_on_the_cpu())


def test_pack_of_another_version_is_reported_and_not_used(
    packed: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {**libraries.environment(), "jaxlib": "9.0"}
    monkeypatch.setattr(libraries, "environment", lambda: here)
    assert main(["unpack", str(packed[1]), "--dir", str(tmp_path / "cache")]) == 1
    _, refused, reason = capsys.readouterr().out.splitlines()
    assert refused.endswith(" and were refused:") and reason.endswith(" there, 9.0 here")
    assert {entry.kind for entry in Store(tmp_path / "cache").entries()} <= {"list"}  # facts on torch's ops
    assert run(packed[0], tmp_path / "cache")[-1] == 1


def test_program_damaged_after_unpacking_is_compiled(packed: tuple[Path, Path], tmp_path: Path) -> None:
    (script, pack), cache = packed, tmp_path / "cache"
    assert main(["unpack", str(pack), "--dir", str(cache)]) == 0
    largest = max(Store(cache).entries("program"), key=lambda entry: entry.size)
    (path,) = cache.rglob(f"{largest.key}.program")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run(script, cache)[-1] == 1


def test_script_that_fails_makes_no_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = tmp_path / "pack.zip"
    assert main(["pack", str(pack), "--kernels", "cpu", "--run", "-c 'raise SystemExit(\"no data\")'"]) == 2
    assert capsys.readouterr().err.endswith(" ended with status 1:\nno data\n")
    assert not pack.exists()


def test_errors_of_a_script_are_shown_whatever_their_encoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.stderr.buffer.write(b'caf\\xe9'); sys.exit(len(sys.stdin.read()) + 3)")
    assert main(["pack", str(tmp_path / "pack.zip"), "--kernels", "cpu", "--run", str(script)]) == 2
    assert capsys.readouterr().err.endswith(" ended with status 3:\ncaf\ufffd\n")


def test_script_ends_though_a_process_that_it_started_runs_on() -> None:
    start = "import subprocess, sys; sys.exit(str(subprocess.Popen(['sleep', '60']).pid))"
    done = recorded._python(["-c", start], dict(os.environ))
    os.kill(int(done.stderr), signal.SIGTERM)  # raises an error if it has ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_script_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """A folder that SIGKILL leaves behind has a name of its own."""
    script, started, temporary = tmp_path / "waits.py", tmp_path / "started", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    command = ["pack", str(tmp_path / "pack.zip"), "--kernels", "cpu", "--run", str(script)]
    code = f"import sys; from lazytpu.inspection.show import main; sys.exit(main({command}))"
    process = zygote.Process(["-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    wait_until(lambda: started.exists() and started.read_text() != "")
    os.kill(process.pid, number)
    process.wait(20)
    wait_until(lambda: not is_running(int(started.read_text())))
    assert list(temporary.iterdir()) == [] or number == signal.SIGKILL


def is_running(pid: int) -> bool:
    """Return whether a process runs: it is there, and has not ended unnoticed by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition. Raises TimeoutError after 20 seconds."""
    limit = time.monotonic() + 20
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("out", "command", "reason"),
    [
        ("missing/pack.zip", "a.py", "missing/pack.zip cannot be written"),
        ("", "a.py", "cannot be written: it is a folder"),
        ("pack.zip", "a.py 'b", "--run a.py 'b: No closing quotation"),
        ("pack.zip", " ", "and got nothing"),
    ],
)
def test_no_script_runs_for_a_pack_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, command: str, reason: str
) -> None:
    assert main(["pack", str(tmp_path / out), "--kernels", "cpu", "--run", command]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err and "running" not in printed.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--kernels", "v6e"], "go together"),
        (["--run", "a.py"], "go together"),
        (["--kernels", "v6e", "--run", "a.py", "--topology", "v6e", "--dump", "d"], "without --topology"),
        (["--kernels", "gpu", "--run", "a.py"], "takes a TPU, such as v6e or v6e:2x2, or cpu, not gpu"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["pack", str(tmp_path / "pack.zip"), *arguments]) == 2
    assert reason in capsys.readouterr().err


def dumped_for_v6e(function: object, operand: torch.Tensor, folder: Path) -> Path:
    """Run a function with a kernel here, and return the description of its program for a v6e."""
    with lazytpu.mode("lazy"), lazytpu.options(target="v6e", dump=folder):
        function(operand.to("tpu")).sum().item()  # pyright: ignore[reportCallIssue]
    (path,) = folder.glob("*.json")
    return path


def test_dump_for_a_tpu_has_the_kernels_of_a_tpu(tmp_path: Path) -> None:
    path = dumped_for_v6e(lazytpu.pallas.custom_jax_kernel(softmax), torch.randn(8, 128), tmp_path)
    assert "tpu_custom_call" in path.with_suffix(".stablehlo.mlir").read_text()
    assert "refused" not in json.loads(path.read_text())


def test_program_that_a_tpu_cannot_run_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dumped_for_v6e(lazytpu.pallas.custom_jax_kernel(softmax), torch.randn(8, 128).double(), tmp_path)
    monkeypatch.setattr(ahead.topologies, "aim_at", lambda topology: None)
    assert ahead.main(["v6e:2x2", str(tmp_path / "cache"), str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path.stem}: not compiled: ")


def test_key_of_a_kernel_is_that_of_its_target() -> None:
    """A process that records for a TPU names kernels as one on the TPU does: by their body there."""

    def program(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(x, tpu=jnp.sin, default=jnp.cos)

    def keys(target: str | None) -> str:
        from lazytpu.kernels.tracing import trace

        with lazytpu.options(target=target):
            return trace("kernel", lambda x: [program(x)], [(jnp.dtype("float32"), (4,), False)]).key

    assert keys("v6e") == keys("v5e") != keys(None) == keys("cpu")
