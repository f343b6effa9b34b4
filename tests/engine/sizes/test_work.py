"""A bucket extends as far as its padding costs little work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lazytpu
from lazytpu.engine.sizes import work
from lazytpu.engine.sizes.work import NOTHING, PER_BYTE
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.trie import Record

pytestmark = pytest.mark.usefixtures("bucketed")


def records(run: Callable[[], object]) -> list[Record]:
    """Return the records of a function without running them."""
    lazytpu.mark_step()
    results = run()
    trace = recorder().state.records()
    del results
    lazytpu.mark_step()
    return trace


def cost(trace: list[Record]) -> float:
    """Return the cost of a run, in bytes."""
    return work.work(trace) / PER_BYTE


def costs_little(most: list[Record], least: list[Record]) -> bool:
    return work.costs_little(most, work.work(most), work.work(least))


def test_work_counts_bytes_and_products() -> None:
    x, weight = torch.ones(2, 8).to("tpu"), torch.ones(16, 8).to("tpu")
    assert cost(records(lambda: x + 1)) == 2 * 64
    assert cost(records(lambda: x[:, :2] * 2)) == 2 * 16
    assert cost(records(lambda: functional.linear(x, weight))) == 64 + 512 + 128 + 2 * 16 * 8 / 4
    assert (
        cost(records(lambda: functional.embedding(torch.zeros(3, dtype=torch.int64).to("tpu"), weight))) == 24 + 2 * 96
    )


def test_padding_a_cache_beside_large_weights_costs_little() -> None:
    x, weight = torch.ones(1, 512).to("tpu"), torch.ones(512, 512).to("tpu")

    def step(length: int) -> list[Record]:
        cache = torch.ones(length, 512).to("tpu")
        return records(lambda: torch.cat([cache, x @ weight]))

    assert cost(step(8)) > NOTHING
    assert costs_little(step(64), step(5))
    assert not costs_little(step(4096), step(513))


def test_padding_rows_of_a_product_costs_much() -> None:
    weight = torch.ones(256, 256).to("tpu")

    def step(rows: int) -> list[Record]:
        x = torch.ones(rows, 256).to("tpu")
        return records(lambda: x @ weight)

    assert not costs_little(step(512), step(65))
    assert not costs_little(step(512), step(257))
    assert costs_little(step(512), step(449))


def test_work_includes_the_time_of_the_host() -> None:
    """In a step of many small ops the time of the host exceeds the time of the device, even with padding."""

    def step(rows: int, ops: int, width: int) -> list[Record]:
        x = torch.ones(rows, width).to("tpu")

        def run() -> Tensor:
            y = x
            for _ in range(ops):
                y = y + 1
            return y

        return records(run)

    many_ops, few_ops = step(64, 30, 64), step(64, 3, 640)
    assert cost(many_ops) == cost(few_ops) > NOTHING
    assert costs_little(many_ops, step(5, 30, 64))
    assert not costs_little(few_ops, step(5, 3, 640))


def test_unknown_work_is_not_little() -> None:
    layer, x = torch.nn.LSTM(4, 8).to("tpu"), torch.ones(5, 2, 4).to("tpu")
    trace = records(lambda: layer(x))
    assert not costs_little(trace, trace)


def programs(run: Callable[[], object]) -> int:
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return len(lazytpu.explain()) - before


def test_small_sizes_share_one_program() -> None:
    def grow() -> None:
        x, host = torch.ones(3, 7).to("tpu"), torch.ones(3, 7)
        for _ in range(40):
            x, host = (torch.cat([tensor, tensor[:, -1:] + 1], 1) for tensor in (x, host))
            assert x.sum().item() == host.sum().item()
            lazytpu.mark_step()

    assert programs(grow) == 2  # one for the first size, and one up to 64


def test_bucket_ends_at_the_size_of_a_table() -> None:
    """Beam search writes its tokens into a table of the maximum length."""

    def fill() -> None:
        table, host = torch.zeros(3, 20).to("tpu"), torch.zeros(3, 20)
        for n in range(7, 20):
            for tensor in (table, host):
                tensor[:, n] = tensor[:, :n].sum(1) + 1
            assert torch.equal(table.cpu(), host)

    assert programs(fill) == 2


def test_blocks_called_without_a_model_share_programs() -> None:
    """Each call of a block begins a step, also at derived states."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
            cache = torch.cat([cache, self.linear(x)])
            return x + cache.mean(0), cache

    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(Block() for _ in range(5))
    device_blocks = torch.nn.ModuleList(Block() for _ in range(5))
    device_blocks.load_state_dict(blocks.state_dict())
    device_blocks.to("tpu")

    def write(mine: torch.nn.ModuleList, device: str) -> list[float]:
        caches = [torch.ones(5, 8).to(device) for _ in mine]
        sums = list[float]()
        with torch.no_grad():
            x = torch.ones(1, 8).to(device)
            for _ in range(12):
                for i, block in enumerate(mine):
                    x, caches[i] = block(x, caches[i])
                lazytpu.mark_step()
                sums.append(x.sum().item())
        return sums

    results = list[float]()
    with lazytpu.mode("fused"):
        compiled = programs(lambda: results.extend(write(device_blocks, "tpu")))
    torch.testing.assert_close(torch.tensor(results), torch.tensor(write(blocks, "cpu")), rtol=1e-4, atol=1e-4)
    assert compiled <= 8
