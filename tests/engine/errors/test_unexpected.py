"""An exception in the search for a shared program is counted, and the exact program runs instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lazytpu
from lazytpu.engine.errors.unexpected import UNEXPECTED
from lazytpu.engine.sizes import chains, every, growth, templates
from lazytpu.engine.sizes.skeletons import SIZE
from lazytpu.engine.sizes.templates import Template
from lazytpu.passes.padding.walk import Walk
from tests.fitted import fit

pytestmark = pytest.mark.usefixtures("fresh_traces")

LENGTHS = (9, 11, 16, 10, 14, 12)


@pytest.fixture(autouse=True)
def one_bucket() -> Iterator[None]:
    lazytpu.sync()
    with lazytpu.options(buckets=(16,)):
        yield
        lazytpu.sync()


def computed(x: Tensor) -> Tensor:
    y = x[: x.shape[0] // 2].exp()
    return (y * 2).sum(0) + x.cumsum(0).mean(0)


def check(run: Callable[..., Tensor], *given: Any) -> None:
    want = run(*given)
    got = run(*[x.to("tpu") if isinstance(x, Tensor) else x for x in given])
    lazytpu.mark_step()
    torch.testing.assert_close(got.cpu(), want)


PLACES: dict[str, tuple[Any, str]] = {
    "templates": (Template, "bucket_of"),
    "forms": (templates, "fit_derived"),
    "relatives": (Template, "_of_relatives"),
    "compiled graphs": (every, "known_of"),
    "chains": (growth, "Chain"),
    "states": (chains, "State"),
    "the pass": (Walk, "run"),
}


@pytest.mark.unexpected
@pytest.mark.parametrize("place", PLACES)
def test_failed_sharing_runs_the_exact_program(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*given: Any, **named: Any) -> Any:
        raise AttributeError(f"in {place}")

    monkeypatch.setattr(*PLACES[place], raises)
    before = lazytpu.metrics()["sharing_errors"]
    for n in LENGTHS:
        check(computed, torch.randn(n, 6))
    assert lazytpu.metrics()["sharing_errors"] > before
    assert f"AttributeError: in {place}" in UNEXPECTED.tracebacks[-1]
    lazytpu.reset_metrics()
    assert lazytpu.metrics()["sharing_errors"] == 0


@pytest.mark.unexpected
def test_shape_family_recovers_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure leaves no partial state behind."""
    original, failing = templates.with_parts, [True]

    def sometimes(*given: Any) -> Any:
        if failing.pop():
            failing.append(False)
            raise KeyError("once")
        failing.append(False)
        return original(*given)

    monkeypatch.setattr(templates, "with_parts", sometimes)
    before = len(lazytpu.explain())
    for n in LENGTHS:
        check(computed, torch.randn(n, 6))
    programs = [str(program) for program in list(lazytpu.explain())[before:]]
    assert len(programs) <= 4 and "one program for sizes" in programs[-1]
    assert len(UNEXPECTED.tracebacks) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_and_memory_errors_are_raised(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*given: Any, **named: Any) -> Any:
        raise error

    x = torch.randn(9, 6)
    with monkeypatch.context() as patch:
        patch.setattr(Template, "bucket_of", raises)
        y = computed(x.to("tpu"))
        with pytest.raises(error):
            y.cpu()
    lazytpu.sync()
    check(computed, x)


def test_line_with_a_number_and_later_a_tensor() -> None:
    def run(x: Tensor, by: Any, bounded: bool) -> Tensor:
        y = x[: x.shape[0] // 2].exp()
        z = (y * by).sum(0)
        w = z * 2 + y.mean(0)
        return w.tanh() if bounded else w

    for by in (2.0, torch.tensor(2.0)):
        for bounded in (False, True):
            for n in LENGTHS:
                check(run, torch.randn(n, 6), by, bounded)


def test_slice_with_an_open_end_in_some_calls() -> None:
    def run(x: Tensor, end: int) -> Tensor:
        return torch.ops.aten.slice_backward(x, [40, 6], 0, 0, end, 1) * 2

    for n, end in ((9, 9), (11, 2**63 - 1), (16, 16), (10, 2**63 - 1), (14, 14)):
        x = torch.randn(n, 6) if end == n else torch.randn(40, 6)
        check(run, x, end)


def test_integers_of_64_bits_are_not_fitted() -> None:
    kinds = np.array([SIZE, 0])
    for large in (2**63 - 1, -(2**63), 1 << 31):
        assert fit([np.array([9, 9]), np.array([11, large])], kinds) is None
        same = fit([np.array([9, large]), np.array([11, large])], kinds)
        assert same is not None and same.at({"n": 13}) == [13, large]


def test_diagonals_above_and_below() -> None:
    """The fitted offset 3*n-13 is negative at n = 4, where the program writes another diagonal."""
    with lazytpu.options(buckets="auto"):
        for n, offset in ((10, 2), (10, 3), (9, -1), (8, 4), (5, 2), (6, 5), (4, -1), (5, -1), (7, 8 - 7)):
            grad = torch.randn(n - abs(offset))
            check(lambda x, n=n, o=offset: torch.ops.aten.diagonal_backward(x, [n, n], o, 0, 1) * 2, grad)


def test_flips_along_different_dims() -> None:
    with lazytpu.options(buckets="auto"):
        for shape, dim in (((10, 7, 9, 5), 2), ((10, 7, 9, 5), 3), ((5, 8, 6, 8), 0), ((6, 9, 5, 7), 1)):
            check(lambda x, d=dim: torch.flip(x, (d,)), torch.randn(shape))
