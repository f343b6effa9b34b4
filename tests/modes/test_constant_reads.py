"""Host reads of values that depend on no device data are answered without a cut; all other reads cut."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu import wiring
from lazytpu.engine.launching import constants
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.constants import LITTLE


class Counted:
    """The changes of the metrics since its creation."""

    def __init__(self) -> None:
        lazytpu.mark_step()
        self.before = lazytpu.metrics()

    def __getattr__(self, name: str) -> int:
        return lazytpu.metrics()[name] - self.before[name]


@pytest.fixture(params=["fused", "lazy"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with lazytpu.mode(request.param):
        yield request.param


def tpu(function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    return function(*args, device="tpu", **kwargs)


# Functions that create a tensor and read it, as a Python value.
READS: dict[str, Callable[[str], Any]] = {
    "item": lambda d: torch.arange(5, device=d).sum().item(),
    "tolist": lambda d: torch.arange(5, device=d).flip(0).tolist(),
    "bool": lambda d: bool((torch.ones(2, 3, device=d).cumsum(-1)[:, -1] == 3).all()),
    "int": lambda d: int(torch.eye(4, device=d).sum()),
    "equal": lambda d: torch.equal(torch.arange(3, device=d), torch.arange(3, device=d) + 0),
    "allclose": lambda d: torch.allclose(torch.ones(3, device=d), torch.full((3,), 1.0, device=d)),
    "nonzero": lambda d: torch.eye(3, device=d).nonzero().tolist(),
    "masked_select": lambda d: torch.arange(6, device=d).masked_select(torch.arange(6, device=d) > 3).tolist(),
    "mask": lambda d: torch.arange(6, device=d)[torch.arange(6, device=d) % 2 == 0].tolist(),
    "unique": lambda d: torch.unique(torch.arange(6, device=d) % 3).tolist(),
    "bincount": lambda d: torch.bincount(torch.arange(6, device=d) % 3).tolist(),
    "repeat_interleave": lambda d: torch.arange(4, device=d).repeat_interleave(torch.arange(4, device=d)).tolist(),
    "cpu": lambda d: torch.linspace(0, 1, 5, device=d).cpu().tolist(),
    "numpy": lambda d: torch.tril(torch.ones(3, 3, device=d)).cpu().numpy().tolist(),
    "a view": lambda d: torch.arange(12, device=d).reshape(3, 4).t()[1:3, ::2].tolist(),
    "other dtype": lambda d: torch.arange(4, dtype=torch.int32, device=d).view(torch.int16).tolist(),
    "conjugate": lambda d: torch.complex(torch.ones(2, device=d), torch.arange(2.0, device=d)).conj().tolist(),
    "negative": lambda d: torch.complex(torch.ones(2, device=d), torch.arange(2.0, device=d)).conj().imag.tolist(),
    "in place": lambda d: torch.zeros(4, device=d).add_(2).mul_(3)[1:].fill_(7).tolist(),
    "expanded": lambda d: torch.arange(3, device=d).expand(2, 3).tolist(),
    "written": lambda d: torch.empty(4, device=d).copy_(torch.arange(4.0, device=d)).tolist(),
    "bfloat16": lambda d: torch.arange(4, dtype=torch.bfloat16, device=d).div(3).tolist(),
    "str": lambda d: str(torch.arange(4, device=d) * 2).removesuffix(", device='tpu:0')").removesuffix(")"),
}


@pytest.mark.parametrize("name", READS)
def test_constant_is_computed_once_without_a_cut(name: str) -> None:
    read = READS[name]
    expected = read("cpu")
    x = torch.full((3,), 2.0).to("tpu")
    for _ in range(2):
        pending = x.exp()
        assert read("tpu") == expected
        lazytpu.mark_step()
        del pending
    counted = Counted()
    pending = x.exp()
    cuts = len(lazytpu.explain_cut(100))
    assert read("tpu") == expected
    assert counted.constant_reads >= 1
    assert (counted.steps, counted.compiles, counted.wait_ms) == (0, 0, 0.0), "the device was not used"
    assert len(lazytpu.explain_cut(100)) == cuts
    lazytpu.mark_step()
    assert counted.steps == 1
    torch.testing.assert_close(pending.cpu(), torch.full((3,), 2.0).exp())


def test_constants_differ_by_their_numbers() -> None:
    for number in (1.0, 2.0, -0.0, 0.0, float("nan"), 2.0):
        for _ in range(2):
            read = torch.full((2,), number, device="tpu").tolist()
            assert [str(x) for x in read] == [str(number)] * 2


def test_overwritten_constant_has_its_new_value() -> None:
    for _ in range(3):
        x = torch.zeros(3, device="tpu")
        view = x[1:]
        assert x.tolist() == [0, 0, 0]
        view.add_(1)
        assert (x.tolist(), view.tolist()) == ([0, 1, 1], [1, 1])
        x.copy_(torch.arange(3.0))
        assert view.tolist() == [1, 2]
        alias = x
        x.data = torch.full((3,), 5.0, device="tpu")
        assert alias.tolist() == [5, 5, 5]


def test_uploaded_data_is_not_constant() -> None:
    for number in range(4):
        x = torch.full((3,), float(number)).to("tpu")
        mask = torch.arange(3, device="tpu") < x
        assert mask.sum().item() == number if number < 3 else 3
        zeros = torch.zeros(3, device="tpu").copy_(x)
        assert zeros.tolist() == [number] * 3
        assert torch.where(mask, x, torch.zeros((), device="tpu")).tolist() == [number * (i < number) for i in range(3)]


def test_random_numbers_are_not_constant() -> None:
    def draws() -> list[Any]:
        x = torch.zeros(3, device="tpu")
        drawn = torch.rand(3, device="tpu"), x.bernoulli(), x + torch.randn(3, device="tpu")
        return [sample.tolist() for sample in drawn]

    counted = Counted()
    assert draws() != draws()
    torch.manual_seed(0)
    first = draws()
    torch.manual_seed(0)
    assert draws() == first
    assert counted.constant_reads == 0


def test_caller_owns_the_memory_of_a_read() -> None:
    for _ in range(3):
        read = torch.arange(3, device="tpu").mul(2).cpu()
        assert read.tolist() == [0, 2, 4]
        read.fill_(9)
        array = torch.arange(3, device="tpu").mul(2).cpu().numpy()
        assert array.tolist() == [0, 2, 4]
        array[:] = 9


def test_ops_after_a_read_use_the_same_bits_and_do_not_donate_them() -> None:
    for _ in range(4):
        x = torch.linspace(0, 1, 7, device="tpu") * 3 + 0.1
        read = x.cpu()
        y = x / 3
        x.mul_(2)
        again = read.to("tpu")
        assert torch.equal(y.cpu(), (again / 3).cpu())
        assert torch.equal(x.cpu(), (again * 2).cpu())
        del x, y
        lazytpu.mark_step()


def test_constant_stays_constant_after_its_trace() -> None:
    total = torch.arange(4, device="tpu").sum()
    assert total.item() == 6
    lazytpu.mark_step()
    assert (total * 2).item() == 12
    lazytpu.mark_step()
    counted = Counted()
    x = torch.full((3,), 2.0).to("tpu").exp()
    assert (total.item(), (total * 2).item()) == (6, 12)
    assert (counted.steps, counted.constant_reads) == (0, 1)
    assert x.sum().item() > 0


def test_large_values_are_read_from_the_device() -> None:
    for size, steps in ((LITTLE, 0), (LITTLE + 1, 1)):
        for _ in range(2):
            assert len(torch.arange(size, device="tpu").add(1).tolist()) == size
        counted = Counted()
        assert torch.arange(size, device="tpu").add(1).tolist()[-1] == size
        assert counted.steps == steps


def test_least_recently_used_constants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MOST", 3)
    kept = wiring.start().answers
    kept.forget()
    live = lazytpu.metrics()["live_bytes"]
    for number in range(10):
        assert torch.full((256,), number, device="tpu").tolist() == [number] * 256
    gc.collect()
    assert lazytpu.metrics()["live_bytes"] - live <= 3 * 256 * 8
    counted = Counted()
    for number, hits in ((9, 1), (8, 2), (0, 2), (9, 3), (7, 3)):  # 0 evicted 7
        assert torch.full((256,), number, device="tpu").tolist()[0] == number
        assert counted.constant_reads >= hits


def test_failed_check_of_a_constant_is_raised_by_its_read() -> None:
    table = torch.arange(3.0, device="tpu")
    for _ in range(2):
        with pytest.raises(IndexError, match="out of bounds"):
            table[torch.full((2,), 7, device="tpu", dtype=torch.int64)].tolist()
        assert torch.arange(3, device="tpu").add(1).tolist() == [1, 2, 3], "the failed check is raised once"
        lazytpu.sync()
    singular = torch.zeros(2, 2).to("tpu")
    for _ in range(2):
        inverse = torch.linalg.inv(singular)
        assert torch.arange(3, device="tpu").sum().item() == 3, "the constant does not depend on the failed check"
        with pytest.raises(torch.linalg.LinAlgError):
            inverse.tolist()


def on_a_thread(work: Callable[[], Any]) -> list[Any]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results


def test_other_thread_reads_a_constant() -> None:
    x = torch.full((3,), 2.0).to("tpu")
    for repeated in (False, True):
        counted = Counted()
        pending = x.exp()
        mask = torch.arange(4, device="tpu") > 2
        assert on_a_thread(mask.tolist) == [[False, False, False, True]]
        assert not repeated or (counted.steps, counted.constant_reads) == (0, 1)
        assert mask.sum().item() == 1
        assert pending.sum().item() > 0


def test_concurrent_threads_read_the_same_constants(mode: str) -> None:
    def work() -> list[Any]:
        with lazytpu.mode(mode):
            return [torch.full((3,), i % 5, device="tpu").cumsum(0).tolist() for i in range(20)]

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(work) for _ in range(4)]]
    assert results == [[[i % 5, i % 5 * 2, i % 5 * 3] for i in range(20)]] * 4


@pytest.mark.parametrize("eager", ["strict", "debug"])
def test_strict_and_debug_mode_read_constants_from_the_device(eager: str) -> None:
    with lazytpu.mode(eager):
        for _ in range(2):
            counted = Counted()
            assert (torch.arange(4, device="tpu") > 2).sum().item() == 1
        assert counted.constant_reads == 0 and counted.steps >= 3


def test_read_of_a_constant_does_not_run_the_finished_step() -> None:
    layer = nn.Linear(3, 3).to("tpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.ones(2, 3).to("tpu")
    for step in range(4):
        counted = Counted()
        out = layer(x)
        constant = torch.arange(4, device="tpu").sum()
        out.sum().backward()
        optimizer.step()
        assert constant.item() == 6
        if step:
            assert counted.steps == 0
        optimizer.zero_grad()  # before the launch, so that the gradients are no results
        lazytpu.mark_step()
        assert counted.steps == 1 or step == 0


def test_reads_of_constants_cut_a_long_loop() -> None:
    """Each forward pass reads a constant mask. Without another cut the trace must not grow without bound."""
    layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(60)]).to("tpu").eval()
    x = torch.ones(2, 4).to("tpu")
    results: list[torch.Tensor] = []

    def forward() -> int:
        with torch.no_grad():
            assert (torch.arange(3, device="tpu") >= 0).all()
            results[:] = [layers(x).sum()]
        return recorder().state.depth

    assert max([forward() for _ in range(40)]) <= 1500
    counted = Counted()
    assert max([forward() for _ in range(40)]) <= 1500
    assert counted.compiles <= 3
