"""A failed cut is undone: overwritten tensors have their old contents, and new results raise the error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import lazytpu
from lazytpu.aten import registry


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that records an op whose import fails and cuts, which undoes the whole trace."""

    def broken(b: object, self: object) -> object:
        raise ValueError("no such thing")

    lazytpu.sync()
    rule = registry.RULES["aten.acosh.default"]
    monkeypatch.setitem(registry.RULES, "aten.acosh.default", replace(rule, function=broken))
    operand = torch.ones(2).to("tpu")

    def fail() -> None:
        lost = operand.acosh()
        with pytest.raises(RuntimeError, match="no such thing"):
            lazytpu.mark_step()
        with pytest.raises(RuntimeError, match="no such thing"):
            lost.cpu()

    return fail


def test_every_write_is_undone(failing: Callable[[], None]) -> None:
    x = torch.arange(6.0).to("tpu")
    row = x.view(2, 3)[1]
    x.add_(1)
    row.mul_(10)
    x.sub_(3)
    failing()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert row.tolist() == [3.0, 4.0, 5.0]


def test_copies_share_memory_again_and_stay_independent(failing: Callable[[], None]) -> None:
    x = torch.ones(3).to("tpu")
    first, second = x.clone(), x.clone()
    x.add_(1)
    first.add_(2)
    failing()
    assert (x.tolist(), first.tolist(), second.tolist()) == ([1.0] * 3,) * 3
    x.mul_(5)
    lazytpu.mark_step()
    first.mul_(7)
    lazytpu.mark_step()
    assert (x.tolist(), first.tolist(), second.tolist()) == ([5.0] * 3, [7.0] * 3, [1.0] * 3)


def test_foreach_write_is_undone(failing: Callable[[], None]) -> None:
    rows = torch.zeros(2, 2).to("tpu")
    vector = torch.full((3,), 4.0).to("tpu")
    torch._foreach_add_([rows[0], vector, rows[1]], 1.0)
    failing()
    assert rows.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert vector.tolist() == [4.0] * 3
    torch._foreach_add_([rows[0], vector, rows[1]], 1.0)
    assert (rows.tolist(), vector.tolist()) == ([[1.0, 1.0], [1.0, 1.0]], [5.0] * 3)


def test_value_created_in_the_failed_trace_raises_its_error(failing: Callable[[], None]) -> None:
    new = torch.ones(3).to("tpu") * 2
    new.add_(1)
    failing()
    with pytest.raises(RuntimeError, match="no such thing"):
        new.tolist()
    assert new.shape == (3,)


def test_memory_is_donated_after_an_undo(failing: Callable[[], None]) -> None:
    x = torch.ones(64, 64).to("tpu")
    x.add_(1)
    failing()
    x.add_(1)
    lazytpu.mark_step()
    assert lazytpu.graphs()[-1].aliased == 1
    assert x[0, 0].item() == 2.0


def test_interrupted_compilation_keeps_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.runtime.xla import client

    def interrupt(*args: object, **more: object) -> object:
        raise KeyboardInterrupt

    x = torch.ones(11, 3).to("tpu")
    x.add_(1)
    with monkeypatch.context() as patched, lazytpu.options(background_compile=0, cache_dir=None):
        patched.setattr(client, "compile_module", interrupt)
        with pytest.raises(KeyboardInterrupt):
            lazytpu.mark_step()
    assert x.tolist() == [[2.0] * 3] * 11
    assert x.add_(1).sum().item() == 99
