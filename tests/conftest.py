"""Fixtures of all tests. Each session has its own cache on disk, which its workers and subprocesses share. For most
tests XLA compiles without optimizations."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from weakref import WeakValueDictionary

import pytest

_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # its session made the folder
if not _WORKER:
    os.environ["LAZYTPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="lazytpu-cache-")
# Cuts wait for their programs, since on a busy machine a step could pass the usual limit and run op by op, which would
# change the counts of programs.
os.environ.setdefault("LAZYTPU_BACKGROUND_COMPILE", "300")
# Compare each program for many sizes with the import at each size.
os.environ.setdefault("LAZYTPU_VERIFY_SIZES", "1")

from tests.compiling import QUICK  # noqa: E402  (it imports lazytpu, which reads these variables)

OPTIMIZED = (
    *("engine/compiling", "engine/cutting/test_host_random.py", "engine/memory"),
    *("frontend/recording/test_step_ends.py", "frontend/recording/test_step_starts.py", "frontend/test_float8.py"),
    *("interrupts", "modes", "passes/fusions", "passes/test_semantics.py", "rehearsal"),
    *("runtime/compiling", "runtime/xla", "trace", "training/test_steps.py"),
)
"""Files and folders of tests that compile with XLA's default options, since they depend on its optimizations: equal
bits in all modes, chains of programs, fusions, denormal numbers, the time that a compilation takes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optimized", action="store_true", help="compile the programs of all tests as users do")
    parser.addoption("--every", type=int, default=1, help="of each file, only the first of so many tests (1)")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a command in the background makes it ignore interrupts, and with it all processes of tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("optimized"):
        QUICK.clear()


def _optimized(node: pytest.Item | pytest.Module) -> bool:
    path = node.path.relative_to(Path(__file__).parent)
    return any(path.is_relative_to(optimized) for optimized in OPTIMIZED)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests with XLA's default options first, since a process keeps its programs and would reuse quick ones."""
    every: int = config.option.every
    if every > 1:
        of_files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        config.hook.pytest_deselected(items=[item for tests in of_files for at, item in enumerate(tests) if at % every])
        items[:] = [item for tests in of_files for item in tests[::every]]
    items.sort(key=lambda item: not _optimized(item))


def pytest_collection_finish() -> None:
    """Freeze the million objects of imports and test collection, so that garbage collections, rehearsals and memory
    reports, which visit all objects, skip them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile without XLA's optimizations in this process; subprocesses compile with the default options."""
    if _optimized(request.node):
        yield
        return
    from lazytpu.runtime.cache import programs

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setitem(programs.OPTIONS, name, value)
        yield


@pytest.fixture(autouse=True, scope="session")
def poison() -> Iterator[None]:
    """Fill padding with NaN, the largest integer or True in every test, so that a result that depends on padding is
    wrong."""
    from lazytpu.runtime.buffers import padded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padded, "POISON", True)
        yield


@pytest.fixture(autouse=True, scope="module")
def whole_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every trace by its whole program. The fastest strategy, and with it the last bits of values, would depend on
    the load of the machine. A module that tests the choice sets CHOOSES = True."""
    if getattr(request.module, "CHOOSES", False):
        yield
        return
    from lazytpu.engine.compiling.choice import Costs
    from lazytpu.engine.compiling.costs import Estimator
    from lazytpu.engine.cutting import on_host

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Estimator, "costs", lambda *_: Costs(0.0))
        patch.setattr(on_host, "BESIDE", float("inf"))
        yield


@pytest.fixture(autouse=True, scope="module")
def short_history() -> None:
    """Empty the list of programs before each module: it is bounded, and tests read the entries that they add."""
    from lazytpu import wiring

    if wiring.ENGINE is not None:
        wiring.ENGINE.compiler.recompiles._listed.clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the varying sizes that earlier tests have shown, and their programs, so that the first size of an op has
    an exact program in every test."""
    from lazytpu import wiring
    from lazytpu.engine.launching.uploads import UPLOADS
    from lazytpu.engine.sizes.every import Templates

    UPLOADS.forget()
    if wiring.ENGINE is not None:
        compiler = wiring.ENGINE.compiler
        monkeypatch.setattr(compiler, "templates", Templates(compiler.inference))
        monkeypatch.setattr(compiler, "by_content", WeakValueDictionary())


@pytest.fixture(autouse=True)
def nothing_unexpected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that neither the search for shared programs nor a pass raised an unexpected exception, which users would
    not see. Tests that provoke one are marked `unexpected`."""
    yield
    raised: list[str] = []
    for module, name in (("errors.unexpected", "UNEXPECTED"), ("compiling.pass_errors", "PASS_ERRORS")):
        counted = getattr(sys.modules.get(f"lazytpu.engine.{module}"), name, None)
        if counted is not None:
            raised += counted.tracebacks
            counted.tracebacks.clear()
    assert not raised or request.node.get_closest_marker("unexpected"), "\n".join(raised)


def pytest_unconfigure() -> None:
    if not _WORKER:
        shutil.rmtree(os.environ["LAZYTPU_CACHE_DIR"], ignore_errors=True)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty cache on disk in the test and its subprocesses; yields the folder of the cache."""
    from lazytpu.options import options

    folder = tmp_path / "empty cache"
    monkeypatch.setenv("LAZYTPU_CACHE_DIR", str(folder))
    with options(cache_dir=folder):
        yield folder


@pytest.fixture
def quick_collections() -> None:
    """Freeze the objects of earlier tests, so that a garbage collection visits only objects of the test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fresh_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin the test with an empty trie and no explained programs. Otherwise traces that begin with the same ops would
    share states with earlier tests, including their source lines."""
    import lazytpu
    from lazytpu.engine.recompiles.history import Recompiles
    from lazytpu.engine.sizes.every import Templates
    from lazytpu.frontend import tensors
    from lazytpu.frontend.names import slot_names
    from lazytpu.trace.trie import State
    from lazytpu.wiring import start

    def begin_at(roots: tuple[State, State]) -> None:
        lazytpu.mark_step()
        mine.root = mine.state = roots[mine.mode == "lazy"]
        mine.roots = roots

    engine = start()
    mine = tensors.recorder()
    before, fresh = mine.roots, (State(None, None, None, 0, 0, 0), State(None, None, None, 0, 0, 0))
    monkeypatch.setattr(engine.compiler, "recompiles", Recompiles(slot_names))
    monkeypatch.setattr(engine.compiler, "templates", Templates(engine.compiler.inference))
    monkeypatch.setattr(tensors, "ROOT", fresh[0])  # roots of new threads
    monkeypatch.setattr(tensors, "LAZY_ROOT", fresh[1])
    begin_at(fresh)
    yield
    begin_at(before)
