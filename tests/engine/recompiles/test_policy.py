"""`options.on_recompile`: warnings and errors for a step that recompiles too often; neither loses a value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.engine.recompiles.policy import RecompileError, RecompileWarning

pytestmark = pytest.mark.usefixtures("fresh_traces")


def on_tpu(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to("tpu")


def growing(total: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """A step that compiles for each size and adds to `total`, whose memory its program donates."""

    def step(size: int) -> torch.Tensor:
        y = (-on_tpu(size) * -2).sum()
        total.add_(y)
        lazytpu.mark_step()
        return y

    return step


def test_recompilation_beyond_the_budget_warns_at_the_users_line() -> None:
    step = growing(on_tpu())
    with lazytpu.options(on_recompile="warn", recompile_budget=2):
        for size in (2, 3, 4, 3, 2):  # three programs: the last two sizes repeat
            step(size)
        with pytest.warns(
            RecompileWarning, match=r"compiled anew for the 3. time, where .*budget allows 2, because: .*f32\[5\]"
        ) as warned:
            assert step(5).item() == 10.0
    (warning,) = [w for w in warned if w.category is RecompileWarning]  # garbage of other tests may also warn
    assert warning.filename == __file__
    assert warning.lineno == growing.__code__.co_firstlineno + 4


def test_recompile_error_names_reason_and_fix_and_undoes_the_step() -> None:
    total = on_tpu()
    step = growing(total)
    with lazytpu.options(on_recompile="raise", recompile_budget=1):
        step(12), step(13)
        compiles = lazytpu.metrics()["compiles"]
        for _ in range(2):
            with pytest.raises(RecompileError, match=r"was f32\[13\], is f32\[14\].*; fix: .*Nothing was compiled"):
                step(14)
            assert lazytpu.explain()[-1].source == "refused"
        assert lazytpu.metrics()["compiles"] == compiles
        assert total.item() == 1 + 24 + 26, "writes of the refused steps are undone"
        assert step(13).item() == 26.0
    assert step(14).item() == 28.0
    assert total.item() == 1 + 24 + 26 + 26 + 28


def test_warning_as_error_undoes_the_step() -> None:
    total = on_tpu()
    step = growing(total)
    step(7)
    with lazytpu.options(on_recompile="warn", recompile_budget=0), pytest.raises(RecompileWarning):
        step(8)
    assert total.item() == 1 + 14


def test_recompile_error_is_raised_by_the_read_that_cuts() -> None:
    def step(size: int) -> torch.Tensor:
        return on_tpu(size).cos().sum()

    with lazytpu.options(on_recompile="raise", recompile_budget=0):
        step(2).item()
        y = step(3)
        with pytest.raises(RecompileError, match="a size that varies"):
            y.item()
        with pytest.raises(RecompileError, match="a size that varies"):
            y.item()
    torch.testing.assert_close(step(3).item(), torch.ones(3).cos().sum().item())


def test_first_programs_of_steps_are_not_counted() -> None:
    weight = torch.nn.Parameter(on_tpu(3))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    with lazytpu.options(on_recompile="raise", recompile_budget=0):
        for _ in range(4):
            (weight * 3).sum().backward()
            optimizer.step()  # its first step creates the momentum
            optimizer.zero_grad()
            lazytpu.mark_step()
        assert on_tpu(3).atan().sum().item() == pytest.approx(3 * torch.ones(1).atan().item())
