"""The mode of a thread: set by the process or by a block, in backward passes and after errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import lazytpu


def metric(name: str) -> int:
    return lazytpu.metrics()[name]


def programs(work: Callable[[], object]) -> int:
    """Count the programs that run for `work` and for the ops that it leaves pending."""
    lazytpu.sync()
    before = metric("steps")
    kept = work()
    lazytpu.sync()
    del kept
    return metric("steps") - before


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    new = torch.ones(3, 2, device="tpu")
    lazytpu.sync()
    yield new
    lazytpu.set_mode("fused")


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).mul(2).tanh()


@pytest.mark.parametrize(("mode", "expected"), [("debug", 3), ("strict", 3), ("fused", 1), ("lazy", 1)])
def test_strict_and_debug_run_one_program_for_each_op(x: torch.Tensor, mode: str, expected: int) -> None:
    with lazytpu.mode(mode):
        assert programs(lambda: chain(x)) == expected
    assert programs(lambda: chain(x)) == 1
    lazytpu.set_mode(mode)
    assert lazytpu.options.mode == mode
    assert programs(lambda: chain(x)) == expected
    with lazytpu.options(mode="fused"):
        assert programs(lambda: chain(x)) == 1
    assert programs(lambda: chain(x)) == expected


def test_unknown_mode_is_refused() -> None:
    for refused in (lambda: lazytpu.mode("eager"), lambda: lazytpu.set_mode("eager")):
        with pytest.raises(ValueError, match="'eager'; allowed: debug, strict, fused or lazy"):
            refused()
    assert lazytpu.options.mode == "fused"


def test_blocks_nest_and_end_after_errors(x: torch.Tensor) -> None:
    again = lazytpu.mode("lazy")
    with lazytpu.mode("strict"):
        with again, again, lazytpu.mode("fused"):
            assert programs(lambda: chain(x)) == 1
        assert programs(lambda: chain(x)) == 3
        with pytest.raises(KeyError), lazytpu.mode("fused"):
            raise KeyError
        assert programs(lambda: chain(x)) == 3
    assert programs(lambda: chain(x)) == 1


def test_mode_change_cuts_pending_ops(x: torch.Tensor) -> None:
    y = x + 2
    before = metric("steps")
    with lazytpu.mode("fused"):
        assert metric("steps") == before, "the mode does not change"
    with lazytpu.mode("lazy"):
        assert metric("steps") == before + 1
        z = y * 2
    assert metric("steps") == before + 2
    assert lazytpu.explain_cut(1)[0].cause == "mode changed"
    assert z.tolist() == [[6.0, 6.0]] * 3


def test_block_is_not_entered_when_pending_ops_fail(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu import wiring

    y = x.mul(1.5).cosh()
    chooser = wiring.start().cutter.chooser

    def fail(*args: object) -> None:
        raise RuntimeError("no program today")

    with monkeypatch.context() as patch:
        patch.setattr(chooser, "program", fail)
        with pytest.raises(RuntimeError, match="no program today"), lazytpu.mode("strict"):
            pytest.fail("the block ran")
    with pytest.raises(RuntimeError, match="no program today"):
        y.cpu()
    assert programs(lambda: chain(x)) == 1


def test_thread_keeps_its_mode(x: torch.Tensor) -> None:
    counts: list[int] = []

    def work() -> None:
        counts.append(programs(lambda: chain(x)))
        with lazytpu.mode("strict"):
            counts.append(programs(lambda: chain(x)))

    def run() -> list[int]:
        counts.clear()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return list(counts)

    with lazytpu.mode("debug"):
        assert run() == [1, 3]
    lazytpu.set_mode("strict")
    assert run() == [3, 3]
    with lazytpu.mode("fused"):
        assert run() == [3, 3]
        assert programs(lambda: chain(x)) == 1


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_backward_pass_has_the_mode_of_its_caller(x: torch.Tensor, mode: str) -> None:
    w = torch.ones(2, device="tpu", requires_grad=True)
    lazytpu.sync()

    def step() -> torch.Tensor | None:
        w.grad = None
        (x * w).tanh().sum().backward()
        return w.grad

    with lazytpu.mode(mode):
        before = metric("steps"), metric("records")
        grad = step()
        ran, recorded = metric("steps") - before[0], metric("records") - before[1]
        assert ran == recorded > 6
    assert grad is not None
    torch.testing.assert_close(grad.cpu(), torch.full((2,), 3 * (1 - torch.tensor(1.0).tanh() ** 2).item()))


def test_overwritten_values_donate_their_memory_at_every_op() -> None:
    others = metric("live_bytes")
    x = torch.ones(256, 1024, device="tpu")
    y = torch.ones(256, 1024, device="tpu")
    with lazytpu.mode("strict"):
        x.add_(y)
        lazytpu.sync()
        lazytpu.reset_metrics()
        for _ in range(3):
            x.add_(y)
            x.mul_(x)
            torch._foreach_add_([x], [y])
        lazytpu.sync()
        assert metric("peak_bytes") - others < 2.5 * x.numel() * 4, "updated in place"


def test_failed_checks_are_raised_by_the_call_in_debug_mode(x: torch.Tensor) -> None:
    index = torch.tensor([0, 5], device="tpu")
    for _ in range(2):
        with lazytpu.mode("debug"), pytest.raises(IndexError, match=rf"index.*at {__file__}:\d+\)") as caught:
            x[index]
        line = caught.traceback[0].lineno + 1
        assert f"{__file__}:{line})" in str(caught.value)
    with lazytpu.mode("debug"), pytest.raises(IndexError) as caught:
        x[index]
    assert f"{__file__}:{line + 4})" in str(caught.value), "the line of this call, not of the first with these shapes"
    with lazytpu.mode("strict"):
        y = x[index]
        with pytest.raises(IndexError) as caught:
            y.cpu()
    assert f"{__file__}:{line + 7})" in str(caught.value)
