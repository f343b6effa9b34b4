"""Python's final garbage collection is skipped at the end of the process, unless an object needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lazytpu.collection import await_end
from tests import zygote


class Plain:
    pass


class Ends:
    def __del__(self) -> None:
        pass


class Inherits(Ends):
    pass


def test_plain_objects_and_standard_streams_allow_the_skip() -> None:
    streams = [sys.__stdin__, sys.__stdout__, sys.__stderr__]
    layers: list[Any] = [getattr(stream, "buffer", None) for stream in streams]
    assert not await_end([Plain(), {}, (number for number in range(3)), *streams, *layers])


@pytest.mark.parametrize("kind", [Ends, Inherits])
def test_object_with_a_finalizer_prevents_the_skip(kind: type) -> None:
    assert await_end([Plain(), kind()])


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_open_file_prevents_the_skip(tmp_path: Path, mode: str) -> None:
    with open(tmp_path / "file", mode) as file:
        assert await_end([file])
    assert not await_end([file])


def _binding(module: str | None) -> Any:
    """Return a function whose class belongs to nanobind, like the functions of an extension."""
    kind = type("nb_func", (), {"__module__": "nanobind"})
    function: Any = kind()
    function.__module__ = module
    return function


def test_bindings_of_other_extensions_prevent_the_skip() -> None:
    assert await_end([Plain(), _binding("triton._C.libtriton")])
    assert not await_end([_binding("jaxlib._jax"), _binding("jax.errors"), _binding(None)])


SCRIPT = """
import gc, atexit, sys
import torch
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 100_000))  # before the device: it is called after
print((torch.ones(3, device="tpu") + 1).sum().item())
class Cycle:
    def __init__(self):
        self.itself = self
kept = Cycle()
"""


def test_process_ends_without_a_collection() -> None:
    done = zygote.run(["-c", "import gc; gc.unfreeze()\n" + SCRIPT], finalizes=True)
    assert (done.returncode, done.stdout) == (0, "6.0\nfrozen True\n"), done.stderr


def test_finalizer_runs_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    extra_code = f"kept.file = open({str(path)!r}, 'w'); kept.file.write('all of it')\n"
    done = zygote.run(["-W", "ignore", "-c", "import gc; gc.unfreeze()\n" + SCRIPT + extra_code], finalizes=True)
    assert (done.returncode, done.stdout) == (0, "6.0\nfrozen False\n"), done.stderr
    assert path.read_text() == "all of it"


def test_bindings_of_the_device_allow_the_skip() -> None:
    extra_code = "print(sum(type(each).__module__ == 'nanobind' for each in gc.get_objects()) > 1000)\n"
    done = zygote.run(["-c", "import gc; gc.unfreeze()\n" + SCRIPT + extra_code], finalizes=True)
    assert (done.returncode, done.stdout) == (0, "6.0\nTrue\nfrozen True\n"), done.stderr


def test_stream_that_raises_prevents_the_skip() -> None:
    detached = "import io; kept.stream = io.TextIOWrapper(io.BytesIO()); kept.stream.detach()\n"
    done = zygote.run(["-c", "import gc; gc.unfreeze()\n" + SCRIPT + detached], finalizes=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6.0\nfrozen False\n", "")
