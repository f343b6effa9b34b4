"""A frequent size gets an exact program in the background; conditions under which only exact programs may run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling import for_sizes, hot_sizes
from lazytpu.engine.compiling.background import CompileWarning
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.compiling.prepared import Prepared
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.frontend.tensors import recorder, value_of
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.errors import CompileError, OutOfMemory
from lazytpu.trace.pending import Trace

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture(autouse=True)
def one_bucket() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(16,)), lazytpu.mode("fused"):
        yield
        lazytpu.sync()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile an exact program after the second run by the program of a bucket."""
    monkeypatch.setattr(for_sizes, "RECORD", 0.0)
    monkeypatch.setattr(hot_sizes, "OFTEN", 1)


def run(size: int) -> torch.Tensor:
    """Run a step of a size, check its values and return them."""
    x = torch.rand(size, 3)
    y = x.to("tpu")
    result = (y / y.sum(0)).cumsum(0)
    lazytpu.mark_step()
    torch.testing.assert_close(result.cpu(), (x / x.sum(0)).cumsum(0))
    return result


def padded(tensor: torch.Tensor) -> bool:
    """Whether a value was computed by the program of a bucket."""
    return isinstance(value_of(tensor).buffer, PaddedBuffer)


def finished() -> None:
    """Wait for compilations in the background."""
    for job in wiring.start().background.unfinished():
        assert job.done.wait(120)


@pytest.mark.usefixtures("at_once")
def test_frequent_size_gets_an_exact_program() -> None:
    assert [padded(run(size)) for size in (9, 11, 13, 11)] == [False, True, True, True]
    finished()
    assert not padded(run(11))
    assert padded(run(13))
    finished()
    explanations = [program for program in lazytpu.explain() if program.code == "hot-size"]
    assert [program.source for program in explanations] == ["compiled"] * 2
    assert explanations[0].text.startswith("n = 11 came 1 times, by the program for many sizes; nearest program is #")
    uploaded = torch.ones(11, 3).to("tpu")
    assert not padded(uploaded), "the exact program would have to slice a padded upload"


def test_no_exact_program_before_padding_has_cost_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_sizes, "RECORD", 1e3)  # seconds, so that no busy machine makes the runs as slow
    for size in (9, 11, *[13] * 20):
        run(size)
    assert not [program for program in lazytpu.explain() if program.code == "hot-size"]


def test_no_exact_program_after_a_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_sizes, "RECORD", 0.0)
    for size in (9, *[11] * hot_sizes.OFTEN):
        run(size)
    assert not [program for program in lazytpu.explain() if program.code == "hot-size"]
    run(11)
    finished()
    assert [program for program in lazytpu.explain() if program.code == "hot-size"]


@pytest.mark.usefixtures("at_once")
def test_exact_programs_are_compiled_only_in_the_background() -> None:
    with lazytpu.options(background_compile=0.0):
        assert [padded(run(size)) for size in (9, 11, 11, 11)] == [False, True, True, True]
    with lazytpu.mode("lazy"):  # modes have their own traces, and the same buckets
        assert [padded(run(size)) for size in (12, 12, 12)] == [True] * 3


@pytest.mark.usefixtures("at_once")
def test_bucket_program_stays_in_use_when_xla_refuses_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Compiler.build

    def refusing(prepared: Prepared) -> Compiled:
        if prepared.making.entry.code == "hot-size":
            raise CompileError("a program", "it has no room")
        return build(wiring.start().compiler, prepared)

    monkeypatch.setattr(wiring.start().background, "build", refusing)
    monkeypatch.setattr("warnings.warn", lambda text, kind, **_: warned.append((kind, str(text))))
    warned: list[tuple[type[Warning], str]] = []
    assert [padded(run(size)) for size in (9, 11, 11)] == [False, True, True]
    finished()
    assert [padded(run(11)) for _ in range(3)] == [True] * 3
    assert [kind for kind, _ in warned] == [CompileWarning]
    assert "goes on with that for many sizes" in warned[0][1]
    assert len([program for program in lazytpu.explain() if program.code == "hot-size"]) == 1


@pytest.mark.usefixtures("at_once")
def test_interrupted_preparation_leaves_the_step_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Compiler.prepare

    def interrupted(self: Compiler, *args: object) -> Prepared:
        if len(args) == 4 and args[3] is not None:
            raise KeyboardInterrupt
        return prepare(self, *args)  # pyright: ignore[reportArgumentType]

    for size in (9, 11):
        run(size)
    x = torch.rand(11, 3)
    y = x.to("tpu")
    result = (y / y.sum(0)).cumsum(0)
    monkeypatch.setattr(Compiler, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lazytpu.mark_step()
    monkeypatch.setattr(Compiler, "prepare", prepare)
    torch.testing.assert_close(result.cpu(), (x / x.sum(0)).cumsum(0))
    finished()
    assert not padded(run(11)), "the compilation was started again"


@pytest.mark.usefixtures("at_once")
def test_exact_program_runs_only_for_cuts_with_its_results() -> None:
    def two(size: int, kept: bool) -> list[torch.Tensor]:
        x = torch.rand(size, 3)
        y = x.to("tpu")
        total = y.sum(0)
        results = [y / total, total] if kept else [y / total]
        del total, y
        lazytpu.mark_step()
        for result, expected in zip(results, (x / x.sum(0), x.sum(0)), strict=False):
            torch.testing.assert_close(result.cpu(), expected)
        return results

    for size in (9, 11, 11):
        two(size, kept=False)
    finished()
    assert [padded(two(11, kept)[0]) for kept in (True, False)] == [True, False]


@contextmanager
def off() -> Iterator[None]:
    with lazytpu.options(buckets="off"):
        yield


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("exactly", [off, deterministic])
def test_exact_settings_do_not_run_programs_for_many_sizes(
    exactly: Callable[[], AbstractContextManager[None]],
) -> None:
    assert [padded(run(size)) for size in (9, 11, 13)] == [False, True, True]
    x = torch.rand(11, 3).to("tpu")
    with exactly():
        result = run(11)
        assert not padded(result)
        repeated = [(x / x.sum(0)).cumsum(0).cpu() for _ in range(2)]
        assert not padded(torch.ones(11, 3).to("tpu"))
    assert torch.equal(*repeated)
    assert [padded(run(size)) for size in (11, 13, 14)] == [False, True, True], "11 has its program now"


def test_exact_programs_run_when_padding_exhausts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutOfMemory("a program", "RESOURCE_EXHAUSTED: it needs more")

    for size in (9, 11):
        run(size)
    monkeypatch.setattr(AtSizes, "launch", full)
    assert [padded(run(size)) for size in (11, 13, 11)] == [False] * 3


def test_waste_of_padding_is_small_beside_large_weights() -> None:
    """Reading the weights dominates the cost of a run, whatever the size of the cache."""
    weight = torch.rand(512, 512).to("tpu")

    def step(length: int) -> float:
        cache = torch.ones(length, 512).to("tpu")
        lazytpu.mark_step()
        _keys = torch.cat([cache, torch.ones(1, 512).to("tpu") @ weight])
        pending = recorder()
        trace = Trace(pending.state, pending.epoch, pending.buffers, [], [], 0.0, pending.mode)
        sized = wiring.start().compiler.sized(trace)
        lazytpu.mark_step()
        return 0.0 if sized is None else sized.waste

    with lazytpu.options(buckets="auto"):
        wasted = [step(length) for length in (9, 11, 13, 33)]
    assert 0 < wasted[-1] < wasted[-2] < 0.2  # of 13 rows, padded to 64
