"""States for new sizes are derived, and equal the states that torch infers."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lazytpu
from lazytpu.frontend.recording.growing import INFERENCE
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.trie import State

SHOWN, LATER = (9, 11, 13), (12, 10, 3, 16, 21, 40, 33, 100, 14)


pytestmark = pytest.mark.usefixtures("bucketed")


def recorded(run: Callable[[Tensor], object], x: Tensor) -> tuple[object, State]:
    """Record `run`; return the layouts of its results and the state that ends its trace, without running it."""
    device = x.to("tpu")
    lazytpu.mark_step()
    results = run(device)
    described = described_as(results)
    state = recorder().state
    del results
    lazytpu.mark_step()  # no result is alive, so nothing runs
    return described, state


def described_as(results: object) -> object:
    if isinstance(results, Tensor):
        return results.dtype, tuple(results.shape), results.stride()
    return [described_as(result) for result in results] if isinstance(results, list | tuple) else results


def split_halves(x: Tensor) -> object:
    lower, upper = x[: len(x) // 2], x[len(x) // 2 :]
    return lower * 2, upper + 1


def gradient(x: Tensor) -> object:
    x.requires_grad_()
    (functional.layer_norm(x, (4,)) @ x.T).softmax(-1).sum().backward()
    return x.grad


PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "pointwise": lambda x: (x * 2 + x.exp()).tanh(),
    "reductions": lambda x: (x.sum(0), x.mean(1), x.amax(0, keepdim=True), x.std()),
    "products": lambda x: (x @ x.T, x.T @ x, torch.einsum("ij,kj->ik", x, x)),
    "views": lambda x: (x.T.contiguous(), x.reshape(-1) + 1, x[1:] * x[:-1], x.unsqueeze(0).expand(3, -1, -1) + 0),
    "concatenation": lambda x: (torch.cat([x, x, x[:1]]), torch.stack([x, x], 1)),
    "padding": lambda x: functional.pad(x, (0, 0, 2, 1)),
    "convolution": lambda x: functional.conv1d(x.T.unsqueeze(0), torch.ones(2, 4, 3, device=x.device), stride=2),
    "pooling": lambda x: functional.max_pool1d(x.T.unsqueeze(0), 2),
    "pooling by three": lambda x: functional.avg_pool1d(x.T.unsqueeze(0), 3, ceil_mode=True),
    "a spectrum": lambda x: torch.fft.rfft(x, dim=0),
    "pairs": lambda x: torch.triu_indices(len(x), len(x), device=x.device) * 2,
    "sorting": lambda x: x.sort(0),
    "halves": split_halves,
    "at most 12": lambda x: x[:12] * 2,
    "by modulus": lambda x: x * 2 if len(x) % 2 else x + 1,
    "ranges": lambda x: torch.arange(len(x), device=x.device) + 1,
    "repeats": lambda x: x.repeat(2, 3),
    "in place": lambda x: x.mul_(2).add_(x[0].clone()),
    "writes": lambda x: torch.zeros_like(x)[1:].copy_(x[1:]),
    "a gradient": gradient,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derived_states_equal_torchs(name: str) -> None:
    run, derived = PROGRAMS[name], 0
    for size in (*SHOWN, *LATER):
        layouts, state = recorded(run, torch.ones(size, 4))
        assert layouts == described_as(run(torch.ones(size, 4))), size
        assert INFERENCE.agrees(state.records(), range(len(state.records()))), size
        derived += state.sizes.grown
    assert derived >= {"by modulus": 0, "at most 12": 0, "a spectrum": 0, "pairs": 0}.get(name, 4), (
        "most states are derived"
    )


def test_values_and_gradients_equal_the_cpu() -> None:
    torch.manual_seed(0)
    host, device = (nn.Sequential(nn.Linear(4, 11), nn.GELU(), nn.Linear(11, 4)) for _ in range(2))
    device.load_state_dict(host.state_dict())
    device.to("tpu")
    with lazytpu.options(buckets=(16,)):
        for size in (9, 11, 10, 14, 12):
            x = torch.randn(size, 4)
            expected, actual = host(x), device(x.to("tpu"))
            host.zero_grad()
            device.zero_grad()
            (expected - expected.mean(0)).square().sum().backward()
            (actual - actual.mean(0)).square().sum().backward()
            torch.testing.assert_close(actual.detach().cpu(), expected.detach())
            for parameter, same in zip(host.parameters(), device.parameters(), strict=True):
                assert parameter.grad is not None and same.grad is not None
                torch.testing.assert_close(same.grad.cpu(), parameter.grad)


@pytest.mark.usefixtures("fresh_traces")  # states and families keep the source lines of their first trace
def test_state_is_derived_for_a_second_size_later_in_the_trace() -> None:
    derived = list[bool]()
    for n, m in ((9, 5), (11, 6), (13, 8), (12, 7), (16, 9), (10, 12)):
        x, y = torch.ones(n, 4).to("tpu"), torch.ones(4, m).to("tpu")
        lazytpu.mark_step()
        z = (x * 3) @ (y + 5)
        derived.append(recorder().state.sizes.grown)
        assert tuple(z.shape) == (n, m)
        assert z.sum().item() == n * m * 4 * 18
    assert derived == [False, False, True, True, True, True]


def test_ambiguous_stride_expressions_give_torchs_layout() -> None:
    """The height after two strides is (n+9)/6, and equals (n)/8+2 in the samples, at three sizes beside them, and at
    24, the end of the range."""

    def run(x: Tensor) -> object:
        ones = torch.ones(2, 2, 3, 3, device=x.device)
        x = functional.conv2d(x, ones, stride=2, padding=1)
        return x, functional.conv2d(x, ones, stride=(3, 2), padding=(2, 1))

    for size in ((9, 34), (10, 25), (14, 36), (17, 11), (9, 12), (21, 22), (23, 20), (28, 40), (33, 17)):
        x = torch.zeros(1, 2, *size)
        assert recorded(run, x)[0] == described_as(run(x))


def test_state_is_derived_behind_a_partial_read() -> None:
    cache, derived = torch.zeros(7, 1).to("tpu"), list[bool]()
    for step in range(9):
        cache = torch.cat([cache, torch.full((7, 1), float(step)).to("tpu")], 1)
        total, kept = cache.amax(), cache * 2
        assert total.item() == step
        cache = kept / 2
        derived.append(recorder().state.sizes.grown)
    assert tuple(cache.shape) == (7, 10)
    assert derived[-3:] == [True] * 3


@pytest.mark.usefixtures("fresh_traces")
def test_ops_left_by_a_read_depend_on_a_later_size() -> None:
    for n, m in ((5, 4), (7, 3), (6, 6), (8, 7), (9, 3), (4, 4), (11, 5), (13, 12)):
        x, y = torch.arange(n * 3.0).view(n, 3), torch.arange(m).to("tpu")
        halves = y.clone()
        halves[: m // 2].mul_(2)
        inner = halves.bfloat16().float()[1:-1]
        device = x.to("tpu")
        assert torch.equal(device[device.sum(1) > 20].cpu(), x[x.sum(1) > 20])
        assert inner.shape[0] == m - 2


def test_view_that_fills_its_table_is_recorded() -> None:
    table = torch.arange(30.0).view(15, 2).to("tpu")
    for size in (9, 11, 10, 12, 13, 14, 15):
        x = torch.ones(size, 2).to("tpu")
        lazytpu.mark_step()
        assert torch.equal((x + table[:size]).cpu(), torch.arange(2.0 * size).view(size, 2) + 1)


def test_errors_of_derived_states_equal_torchs() -> None:
    for size in (9, 11, 13, 12, 10):
        x = torch.ones(size).to("tpu")
        lazytpu.mark_step()
        x.topk(5)
        lazytpu.mark_step()
    small = torch.ones(4).to("tpu")
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        small.topk(5)
    for size in (9, 11, 13, 12, 10):
        x = torch.ones(size).to("tpu")
        lazytpu.mark_step()
        (x * 2).topk(5)
        lazytpu.mark_step()
    twice = torch.ones(4).to("tpu") * 2
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        twice.topk(5)
    for size in (9, 11, 13, 12):
        x = torch.ones(size, 4).to("tpu")
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            x.mm(x)


@pytest.mark.usefixtures("fresh_traces")
def test_errors_name_the_line_of_their_trace() -> None:
    def looked_up(size: int, at: int) -> Tensor:
        table, index = torch.ones(size, 3).to("tpu"), torch.tensor([at, 0]).to("tpu")
        lazytpu.mark_step()
        return functional.embedding(index, table)

    for size in (9, 11, 13, 12):
        assert looked_up(size, 2).sum().item() == 6.0
    table, index = torch.ones(10, 3).to("tpu"), torch.tensor([10, 0]).to("tpu")
    lazytpu.mark_step()
    failing = functional.embedding(index, table)
    line = line_of_caller()
    assert not recorder().state.sizes.grown
    with pytest.raises(IndexError, match=rf"test_growth\.py:{line - 1}\b"):
        failing.cpu()
    with pytest.raises(IndexError, match=rf"test_growth\.py:{looked_up.__code__.co_firstlineno + 3}\b"):
        looked_up(14, 14).cpu()


def line_of_caller() -> int:
    """Return the line number of the caller."""
    return sys._getframe(1).f_lineno


def test_states_are_derived_in_each_mode() -> None:
    for mode in ("fused", "lazy"):
        with lazytpu.mode(mode):
            derived = [
                recorded(lambda x: x.cos() - x, torch.ones(size, 3))[1].sizes.grown for size in (9, 11, 13, 12, 10)
            ]
        assert derived[-1], mode


def test_off_derives_no_states() -> None:
    with lazytpu.options(buckets="off"):
        states = [recorded(lambda x: x.erfinv(), torch.ones(size, 4))[1] for size in (9, 11, 13, 12)]
    assert not any(state.sizes.grown for state in states)
