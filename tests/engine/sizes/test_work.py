"""Buckets are as far apart as their padding costs little."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import lazytpu
from lazytpu.engine.sizes.work import NOTHING, costs_little, work
from lazytpu.frontend.tensors import recorder
from lazytpu.trace.trie import Record

pytestmark = pytest.mark.usefixtures("bucketed")


def records(run: Callable[[], object]) -> list[Record]:
    """What a function records; nothing runs."""
    lazytpu.mark_step()
    given = run()
    found = recorder().state.records()
    del given
    lazytpu.mark_step()
    return found


def test_bytes_and_products_count() -> None:
    x, weight = torch.ones(2, 8).to("tpu"), torch.ones(16, 8).to("tpu")
    assert work(records(lambda: x + 1)) == 2 * 64
    assert work(records(lambda: x[:, :2] * 2)) == 2 * 16
    assert work(records(lambda: functional.linear(x, weight))) == 64 + 512 + 128 + 2 * 16 * 8 / 4
    assert (
        work(records(lambda: functional.embedding(torch.zeros(3, dtype=torch.int64).to("tpu"), weight))) == 24 + 2 * 96
    )


def test_a_cache_beside_large_weights_costs_little() -> None:
    x, weight = torch.ones(1, 512).to("tpu"), torch.ones(512, 512).to("tpu")

    def step(length: int) -> list[Record]:
        cache = torch.ones(length, 512).to("tpu")
        return records(lambda: torch.cat([cache, x @ weight]))

    assert work(step(8)) > NOTHING
    assert costs_little(step(64), step(5))
    assert not costs_little(step(4096), step(513))


def test_rows_of_a_product_do_not() -> None:
    weight = torch.ones(256, 256).to("tpu")

    def step(rows: int) -> list[Record]:
        x = torch.ones(rows, 256).to("tpu")
        return records(lambda: x @ weight)

    assert not costs_little(step(512), step(65))
    assert not costs_little(step(512), step(257))
    assert costs_little(step(512), step(449))


def test_ops_cost_the_host_time_too() -> None:
    """Where a step of small values has many ops, the host is as long with these as the device with padding."""

    def step(rows: int, ops: int, width: int) -> list[Record]:
        x = torch.ones(rows, width).to("tpu")

        def run() -> Tensor:
            y = x
            for _ in range(ops):
                y = y + 1
            return y

        return records(run)

    many, few = step(64, 30, 64), step(64, 3, 640)
    assert work(many) == work(few) > NOTHING
    assert costs_little(many, step(5, 30, 64))
    assert not costs_little(few, step(5, 3, 640))


def test_of_what_is_not_known_nothing_is_said() -> None:
    layer, x = torch.nn.LSTM(4, 8).to("tpu"), torch.ones(5, 2, 4).to("tpu")
    found = records(lambda: layer(x))
    assert not costs_little(found, found)


def programs(run: Callable[[], object]) -> int:
    before = len(lazytpu.explain())
    run()
    lazytpu.sync()
    return len(lazytpu.explain()) - before


def test_small_sizes_have_one_program() -> None:
    def grow() -> None:
        x, host = torch.ones(3, 7).to("tpu"), torch.ones(3, 7)
        for _ in range(40):
            x, host = (torch.cat([each, each[:, -1:] + 1], 1) for each in (x, host))
            assert x.sum().item() == host.sum().item()
            lazytpu.mark_step()

    assert programs(grow) == 2  # the first one, and one up to 64


def test_a_table_of_the_script_ends_the_bucket() -> None:
    """As of beam search, which writes the tokens into a table of the greatest length."""

    def fill() -> None:
        table, host = torch.zeros(3, 20).to("tpu"), torch.zeros(3, 20)
        for n in range(7, 20):
            for each in (table, host):
                each[:, n] = each[:, :n].sum(1) + 1
            assert torch.equal(table.cpu(), host)

    assert programs(fill) == 2


def test_blocks_of_a_script_without_a_model() -> None:
    """Each call of a block begins a step; so it does at sizes whose states were made."""

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
        found = list[float]()
        with torch.no_grad():
            x = torch.ones(1, 8).to(device)
            for _ in range(12):
                for i, block in enumerate(mine):
                    x, caches[i] = block(x, caches[i])
                lazytpu.mark_step()
                found.append(x.sum().item())
        return found

    found = list[float]()
    with lazytpu.mode("fused"):
        made = programs(lambda: found.extend(write(device_blocks, "tpu")))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(write(blocks, "cpu")), rtol=1e-4, atol=1e-4)
    assert made <= 8
