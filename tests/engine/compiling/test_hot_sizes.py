"""A size that comes often gets its exact program, behind the steps; and when programs for many sizes may not serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling import for_sizes, hot_sizes
from lazytpu.engine.compiling.background import CompileWarning
from lazytpu.engine.compiling.compiler import Compiler, Prepared
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.frontend.tensors import recorder, value_of
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.errors import CompileError, OutOfMemory

pytestmark = pytest.mark.usefixtures("fresh_traces")


@pytest.fixture(autouse=True)
def one_bucket() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(16,)), lazytpu.mode("fused"):
        yield
        lazytpu.sync()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run by the program of a bucket is worth an exact one."""
    monkeypatch.setattr(for_sizes, "RECORD", 0.0)
    monkeypatch.setattr(hot_sizes, "OFTEN", 1)


def run(size: int) -> torch.Tensor:
    """A step of a size; it checks the values."""
    x = torch.rand(size, 3)
    y = x.to("tpu")
    given = (y / y.sum(0)).cumsum(0)
    lazytpu.mark_step()
    torch.testing.assert_close(given.cpu(), (x / x.sum(0)).cumsum(0))
    return given


def padded(tensor: torch.Tensor) -> bool:
    """Whether a value was made by the program of a bucket."""
    return isinstance(value_of(tensor).buffer, PaddedBuffer)


def finished() -> None:
    """Wait for what is compiled in the background."""
    for job in wiring.start().background.unfinished():
        assert job.done.wait(120)


@pytest.mark.usefixtures("at_once")
def test_a_size_that_comes_often_gets_its_program() -> None:
    assert [padded(run(size)) for size in (9, 11, 13, 11)] == [False, True, True, True]
    finished()
    assert not padded(run(11))
    assert padded(run(13))
    finished()
    made = [each for each in lazytpu.explain() if each.code == "hot-size"]
    assert [each.source for each in made] == ["compiled"] * 2
    assert made[0].text.startswith("n = 11 came 1 times, by the program for many sizes; nearest program is #")
    uploaded = torch.ones(11, 3).to("tpu")
    assert not padded(uploaded), "it would be cut for its program"


def test_not_before_padding_has_cost_as_much() -> None:
    for size in (9, 11, *[13] * 20):
        run(size)
    assert not [each for each in lazytpu.explain() if each.code == "hot-size"]


def test_not_after_a_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_sizes, "RECORD", 0.0)
    for size in (9, *[11] * hot_sizes.OFTEN):
        run(size)
    assert not [each for each in lazytpu.explain() if each.code == "hot-size"]
    run(11)
    finished()
    assert [each for each in lazytpu.explain() if each.code == "hot-size"]


@pytest.mark.usefixtures("at_once")
def test_only_in_the_background() -> None:
    with lazytpu.options(background_compile=0.0):
        assert [padded(run(size)) for size in (9, 11, 11, 11)] == [False, True, True, True]
    with lazytpu.mode("lazy"):  # modes have their own traces, and the same buckets
        assert [padded(run(size)) for size in (12, 12, 12)] == [True] * 3


@pytest.mark.usefixtures("at_once")
def test_what_xla_refuses_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Compiler.build

    def refusing(prepared: Prepared) -> Compiled:
        if prepared.making.entry.code == "hot-size":
            raise CompileError("a program", "it has no room")
        return build(wiring.start().compiler, prepared)

    monkeypatch.setattr(wiring.start().background, "build", refusing)
    monkeypatch.setattr("warnings.warn", lambda text, kind, **_: told.append((kind, str(text))))
    told: list[tuple[type[Warning], str]] = []
    assert [padded(run(size)) for size in (9, 11, 11)] == [False, True, True]
    finished()
    assert [padded(run(11)) for _ in range(3)] == [True] * 3
    assert [kind for kind, _ in told] == [CompileWarning]
    assert "goes on with that for many sizes" in told[0][1]
    assert len([each for each in lazytpu.explain() if each.code == "hot-size"]) == 1


@pytest.mark.usefixtures("at_once")
def test_an_interrupt_while_it_is_prepared_leaves_the_step_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Compiler.prepare

    def interrupted(self: Compiler, *args: object) -> Prepared:
        if len(args) == 4 and args[3] is not None:
            raise KeyboardInterrupt
        return prepare(self, *args)  # pyright: ignore[reportArgumentType]

    for size in (9, 11):
        run(size)
    x = torch.rand(11, 3)
    y = x.to("tpu")
    given = (y / y.sum(0)).cumsum(0)
    monkeypatch.setattr(Compiler, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lazytpu.mark_step()
    monkeypatch.setattr(Compiler, "prepare", prepare)
    torch.testing.assert_close(given.cpu(), (x / x.sum(0)).cumsum(0))
    finished()
    assert not padded(run(11)), "it was begun again"


@pytest.mark.usefixtures("at_once")
def test_it_serves_only_cuts_that_want_what_it_computes() -> None:
    def two(size: int, kept: bool) -> list[torch.Tensor]:
        x = torch.rand(size, 3)
        y = x.to("tpu")
        total = y.sum(0)
        results = [y / total, total] if kept else [y / total]
        del total, y
        lazytpu.mark_step()
        for given, expected in zip(results, (x / x.sum(0), x.sum(0)), strict=False):
            torch.testing.assert_close(given.cpu(), expected)
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
def test_programs_for_many_sizes_serve_no_more_where_they_may_not(
    exactly: Callable[[], AbstractContextManager[None]],
) -> None:
    assert [padded(run(size)) for size in (9, 11, 13)] == [False, True, True]
    x = torch.rand(11, 3).to("tpu")
    with exactly():
        one = run(11)
        assert not padded(one)
        given = [(x / x.sum(0)).cumsum(0).cpu() for _ in range(2)]
        assert not padded(torch.ones(11, 3).to("tpu"))
    assert torch.equal(*given)
    assert [padded(run(size)) for size in (11, 13, 14)] == [False, True, True], "11 has its program now"


def test_no_room_for_padding_means_exact_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutOfMemory("a program", "RESOURCE_EXHAUSTED: it needs more")

    for size in (9, 11):
        run(size)
    monkeypatch.setattr(AtSizes, "launch", full)
    assert [padded(run(size)) for size in (11, 13, 11)] == [False] * 3


def test_padding_beside_large_weights_is_little_waste() -> None:
    """The size of a cache says little of what a run costs that reads weights."""
    weight = torch.rand(512, 512).to("tpu")

    def step(length: int) -> float:
        cache = torch.ones(length, 512).to("tpu")
        lazytpu.mark_step()
        _keys = torch.cat([cache, torch.ones(1, 512).to("tpu") @ weight])
        sized = wiring.start().compiler.sized(recorder())
        lazytpu.mark_step()
        return 0.0 if sized is None else sized.waste

    with lazytpu.options(buckets="auto"):
        wasted = [step(length) for length in (9, 11, 13, 33)]
    assert 0 < wasted[-1] < wasted[-2] < 0.2  # of 13 rows, padded to 64
