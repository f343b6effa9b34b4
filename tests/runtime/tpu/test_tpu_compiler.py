"""Compiling for TPUs that this machine does not have: in a process that may die, cached, and shared by a chip and a
pod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jaxlib
import pytest

from lazytpu.runtime.cache.store import store
from lazytpu.runtime.errors import CompileError, PlatformError
from lazytpu.runtime.tpu import tpu_compiler
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_compiler import compile_for_tpu

MODULE = """
module @step {
  func.func public @main(%w: tensor<8x128xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x128xf32> {
    %0 = stablehlo.add %w, %w : tensor<8x128xf32> loc("train.py":7:0)
    return %0 : tensor<8x128xf32>
  }
}
"""


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace the compiler's process by a process that runs this code."""
    script = tmp_path / "child.py"
    script.write_text(f"import os, sys, time\nprint('about to', file=sys.stderr, flush=True)\n{code}\n")
    monkeypatch.setattr(tpu_compiler, "CHILD", script)


def test_program_for_one_chip_is_compiled_once_for_all_pod_sizes(empty_cache: Path):
    first = compile_for_tpu(MODULE, "v6e:2x2")
    pod = compile_for_tpu(MODULE, "v6e:16x16")
    assert not first.cached and pod.cached
    assert (first.proto, first.memory) == (pod.proto, pod.memory)
    assert pod.topology.chips == 256
    assert b"train.py" in first.proto and b"estimated_cycles" in first.proto
    assert first.memory.arguments == first.memory.aliased == 8 * 128 * 4
    assert "parameter 0" in first.buffers
    assert [entry.about["name"] for entry in store().entries("tpu")] == ["program for v6e:2x2"]


def test_safe_path_python_finds_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path):
    python, packages = tmp_path / "python", str(Path(jaxlib.__file__).parents[1])
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -P "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "path", [packages, *(entry for entry in sys.path if entry != packages)])
    assert not compile_for_tpu(MODULE, "v6e:2x2").cached


def test_refusal_of_the_compiler_is_reported():
    broken = MODULE.replace("stablehlo.add", "stablehlo.sum")
    with pytest.raises(CompileError, match=r"could not compile train_step: (?s:.*)stablehlo\.sum"):
        compile_for_tpu(broken, "v6e:2x2", name="train_step")


def test_crash_of_the_compiler_reports_its_last_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child(tmp_path, monkeypatch, "os.abort()")
    with pytest.raises(CompileError, match=r"died of SIGABRT\. Its last words:\nabout to"):
        compile_for_tpu(MODULE + "// dies", "v6e:2x2")


def test_compiler_without_output_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child(tmp_path, monkeypatch, "sys.exit(3)")
    with pytest.raises(CompileError, match="ended with status 3 and no answer"):
        compile_for_tpu(MODULE + "// is silent", "v6e:2x2")


def test_hanging_compiler_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child(tmp_path, monkeypatch, "time.sleep(600)")
    with pytest.raises(CompileError, match="was ended after 1 s"):
        compile_for_tpu(MODULE + "// hangs", "v6e:2x2", limit=1)


def test_failure_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path):
    child(tmp_path, monkeypatch, "os.abort()")
    with pytest.raises(CompileError):
        compile_for_tpu(MODULE, "v6e:2x2")
    assert not store().entries("tpu")


def test_error_without_libtpu_explains_the_installation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "libtpu").is_dir()])
    monkeypatch.delitem(sys.modules, "libtpu", raising=False)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(PlatformError, match=r"pip install 'lazytpu\[tpu\]'"):
        compile_for_tpu(MODULE, "v6e:2x2")


@pytest.mark.parametrize(
    ("text", "chips", "devices", "smallest"),
    [
        ("v5e:4x4", 16, 16, "v5e:2x2"),
        ("v6e:1x1", 1, 1, "v6e:2x2"),
        ("v5p:16x20x28", 8960, 8960, "v5p:2x2x1"),
        ("tpu7x:2x2x1", 4, 8, "tpu7x:2x2x1"),
        ("v5e:4x4*2", 32, 32, "v5e:2x2"),
    ],
)
def test_topologies(text: str, chips: int, devices: int, smallest: str):
    topology = Topology.parse(text)
    assert (topology.chips, topology.devices, str(topology), str(topology.smallest)) == (chips, devices, text, smallest)


@pytest.mark.parametrize(("text", "full"), [("v6e", "v6e:2x2"), (" V5P ", "v5p:2x2x1"), ("V5e:4x4", "v5e:4x4")])
def test_generation_alone_is_its_smallest_topology(text: str, full: str):
    assert str(Topology.parse(text)) == full


INVALID = ["tpu", "v6e:2x2x1", "v5p:4", "v9:2x2", "v6e:0x2", "v6e:32x32", "v6e:2*2", "v6e:2x2*0"]


@pytest.mark.parametrize("text", INVALID)
def test_invalid_topologies_are_refused(text: str):
    with pytest.raises(ValueError, match="is no TPU topology: a generation and its chips"):
        compile_for_tpu(MODULE, text)


@pytest.mark.parametrize(
    ("module", "partitions"),
    [
        (MODULE, 8),
        (MODULE.replace("@step", "@step attributes {mhlo.num_partitions = 8 : i32}"), None),
        (MODULE.replace("@step", "@step attributes {mhlo.num_replicas = 4 : i32}"), 2),
    ],
)
def test_topology_may_be_too_small(module: str, partitions: int | None):
    with pytest.raises(ValueError, match="is for 8 devices, and v6e:2x2 has 4"):
        compile_for_tpu(module, "v6e:2x2", partitions=partitions)


def test_libtpu_is_silent_without_a_tpu():
    """A plain run looks for no TPU on a machine without one, although libtpu is installed."""
    code = "import libtpu; from lazytpu.runtime.xla import client; print(client.platform())"
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "LAZYTPU_PLATFORM")}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=kept, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("cpu\n", "")
