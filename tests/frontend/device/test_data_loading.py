"""torch.utils.data: loaders with and without workers, pinned, collated on the device, and the error of device use in a
worker."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, random_split

# jax warns at each fork; lazytpu disables the warning, and pytest enables it again
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


class Row(NamedTuple):
    x: torch.Tensor
    index: int


class Rows(Dataset[Any]):
    """Nested items: a named tuple, strings, lists of tensors."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.full((3,), float(index))
        return {"row": Row(x, index), "name": f"row {index}", "parts": [x, x + 1]}


class OnDevice(Dataset[torch.Tensor]):
    """Items created on the device: not for workers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device="tpu")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_come_to_the_device(workers: int, pinned: bool) -> None:
    (torch.ones(2, device="tpu") + 1).tolist()  # the engine runs when workers are forked
    loader = DataLoader(Rows(), batch_size=4, num_workers=workers, pin_memory=pinned, persistent_workers=workers > 0)
    for _ in range(2):
        batches = []
        for batch in loader:
            assert type(batch["row"]) is Row
            x = batch["row"].x.to("tpu", non_blocking=True)
            column = batch["parts"][1].to("tpu", non_blocking=True)
            batches.extend((column - x + x[:, :1]).sum(1).tolist())
        assert batches == [3.0 + 3 * i for i in range(8)]


def test_a_worker_that_uses_the_device_gets_an_error() -> None:
    (torch.ones(2, device="tpu") + 1).tolist()
    with pytest.raises(RuntimeError, match="Cannot re-initialize tpu in forked subprocess"):
        list(DataLoader(OnDevice(), batch_size=2, num_workers=1))


def test_items_on_the_device_without_workers() -> None:
    batches = list(DataLoader(OnDevice(), batch_size=2))
    assert [b.tolist() for b in batches] == [[[0.0] * 2, [1.0] * 2], [[2.0] * 2, [3.0] * 2]]
    assert batches[0].device.type == "tpu"
    loader = DataLoader(Rows(), batch_size=4, collate_fn=lambda rows: torch.stack([r["row"].x for r in rows]).to("tpu"))
    assert sum(batch.sum().item() for batch in loader) == 84.0


def test_datasets_of_device_tensors() -> None:
    x = torch.arange(10.0).to("tpu")
    data = TensorDataset(x, x * 2)
    first, second = random_split(data, [7, 3], generator=torch.Generator().manual_seed(0))
    seen = [v for subset in (first, second) for a, b in DataLoader(subset, batch_size=4) for v in (b - a).tolist()]
    assert sorted(seen) == [float(i) for i in range(10)]


def test_shuffling_by_a_generator_of_the_device() -> None:
    def order(seed: int) -> list[int]:
        generator = torch.Generator("tpu").manual_seed(seed)
        return list(RandomSampler(range(6), generator=generator))

    assert sorted(order(1)) == list(range(6))
    assert order(1) == order(1)


def test_packed_sequences_move_and_pin() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    assert torch.equal(packed.pin_memory().data, packed.data)
    layer = torch.nn.LSTM(4, 5).to("tpu")
    out, _ = layer(packed.to("tpu"))
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(out)
    assert padded.device.type == "tpu"
    assert lengths.tolist() == [3, 2]
    assert padded[2, 1].tolist() == [0.0] * 5
