"""Tests use a cache on disk of their own: one for the session, that workers and the programs tests start share. XLA
compiles for most of them without its optimizations."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # its session made the folder
if not _WORKER:
    os.environ["LAZYTPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="lazytpu-cache-")
# A program is waited for: on a busy machine one may take longer than a user is asked to wait, and would be counted as
# those of its ops that run meanwhile.
os.environ.setdefault("LAZYTPU_BACKGROUND_COMPILE", "300")
# What the import with symbolic sizes derives is compared with the import of each size.
os.environ.setdefault("LAZYTPU_VERIFY_SIZES", "1")

from tests.compiling import QUICK  # noqa: E402  (it imports lazytpu, which reads these variables)

OPTIMIZED = (
    *("engine", "interrupts", "modes", "passes", "rehearsal", "runtime", "trace"),
    "frontend/recording/test_step_ends.py",
    "frontend/recording/test_step_starts.py",
    "frontend/test_float8.py",
    "training/test_steps.py",
)
"""Tests that get XLA as users do: what they look for (donated memory, chains of programs, the same bits in all modes,
what is fused and what must not be, the smallest numbers) depends on its optimizations."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optimized", action="store_true", help="compile the programs of all tests as users do")
    parser.addoption("--every", type=int, default=1, help="of each file, only the first of so many tests (1)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("optimized"):
        QUICK.clear()


def _optimized(node: pytest.Item | pytest.Module) -> bool:
    path = node.path.relative_to(Path(__file__).parent)
    return path.parts[0] in OPTIMIZED or path.as_posix() in OPTIMIZED


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that get XLA as users do come first: a process keeps its programs, and would use those of other tests."""
    every: int = config.option.every
    if every > 1:
        of_files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        config.hook.pytest_deselected(items=[each for tests in of_files for at, each in enumerate(tests) if at % every])
        items[:] = [each for tests in of_files for each in tests[::every]]
    items.sort(key=lambda item: not _optimized(item))


def pytest_collection_finish() -> None:
    """What imports and the collection of tests have left stays to the end: garbage collections, rehearsals and reports
    of memory, which look at all objects, need not look at a million of these."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    """XLA without optimizations, in this process: the programs that tests start compile as users do."""
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
    """What lies beyond the true sizes of a value holds NaN, the largest integer or True, in every test: a result that
    depends on it is wrong."""
    from lazytpu.runtime.buffers import padded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(padded, "POISON", True)
        yield


@pytest.fixture(autouse=True, scope="module")
def whole_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Steps wait for their whole programs, and short traces too have one: which way is the shortest, and with it the
    last bits of values, depends on how busy the machine is. A module that tests this says CHOOSES = True."""
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
    """The list of programs is bounded, and tests look at those behind the ones before them: each module has room."""
    from lazytpu import wiring

    if wiring.ENGINE is not None:
        wiring.ENGINE.compiler.recompiles._listed.clear()  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests before this one have shown of sizes that vary is unknown: the first size of an op has a program of
    its own, whichever test ran that op before."""
    from lazytpu import wiring
    from lazytpu.engine.sizes.every import Templates
    from lazytpu.engine.sizes.uploads import UPLOADS

    UPLOADS.forget()
    if wiring.ENGINE is not None:
        compiler = wiring.ENGINE.compiler
        monkeypatch.setattr(compiler, "templates", Templates(compiler.inference))


@pytest.fixture(autouse=True)
def nothing_unexpected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Code that looks for programs to share raises nothing unexpected, and no pass does: users would not see it, and
    lose sharing or the pass. Tests that provoke it are marked `unexpected`."""
    yield
    raised: list[str] = []
    for module, name in (("sizes.unexpected", "UNEXPECTED"), ("compiling.pass_errors", "PASS_ERRORS")):
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
    """Nothing on disk: what the test needs is compiled, here and in programs it starts. The folder of that cache."""
    from lazytpu.options import options

    folder = tmp_path / "empty cache"
    monkeypatch.setenv("LAZYTPU_CACHE_DIR", str(folder))
    with options(cache_dir=folder):
        yield folder


@pytest.fixture
def quick_collections() -> None:
    """A garbage collection looks only at what the test made: what the tests before it imported and recorded stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fresh_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No trace was recorded and no program explained before the test, so that it does not depend on those before it:
    traces that begin with the same ops share them, with the source lines of whichever was first."""
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
    monkeypatch.setattr(tensors, "ROOT", fresh[0])  # those of threads
    monkeypatch.setattr(tensors, "LAZY_ROOT", fresh[1])
    begin_at(fresh)
    yield
    begin_at(before)
