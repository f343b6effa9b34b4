"""Packed sequences are one record in each direction, equal to the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils import rnn

from tests.frontend.alike import attempt, records, same, seen


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding_agree_with_the_cpu(batch_first: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 2) if batch_first else torch.randn(5, 3, 2)

    def run(device: str, lengths: list[int], padding: float, total: int | None) -> list[Any]:
        leaf = x.detach().clone().to(device).requires_grad_()
        packed = rnn.pack_padded_sequence(leaf, torch.tensor(lengths), batch_first, enforce_sorted=False)
        padded, ends = rnn.pad_packed_sequence(packed, batch_first, padding, total)
        (first,) = torch.autograd.grad(padded.pow(3).sum(), leaf, create_graph=True)
        return seen([packed.data, packed.batch_sizes, padded, ends, first, *torch.autograd.grad(first.sum(), leaf)])

    for case in (([2, 4, 1], 0.0, None), ([3, 3, 3], -1.5, 6)):
        same(run("tpu", *case), run("cpu", *case))
    before = records()
    packed = rnn.pack_padded_sequence(x.to("tpu"), torch.tensor([3, 3, 2]), batch_first)
    rnn.pad_packed_sequence(packed)
    assert records() - before == 2


def test_other_dtypes_and_arguments_that_torch_rejects() -> None:
    def calls(device: str) -> list[Any]:
        x = torch.arange(12).reshape(4, 3).to(device)
        padded = rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1])), padding_value=7)
        wrong = ([2, 1, 0], [1, 2, 3], [2, 1])
        return seen([*padded, *(attempt(lambda n=n: rnn.pack_padded_sequence(x, torch.tensor(n))) for n in wrong)])

    same(calls("tpu"), calls("cpu"))


def test_packed_data_is_a_tensor_like_any_other() -> None:
    """Its memory has more rows than torch sees; results of ops on it, and packed sequences made from these, do not."""
    torch.manual_seed(0)
    x, layer = torch.randn(5, 3, 2), torch.nn.GRU(2, 2, 2, dropout=0.5).eval()

    def run(device: str) -> list[Any]:
        on_device, leaf = copy.deepcopy(layer).to(device), x.to(device).requires_grad_()
        packed = rnn.pack_padded_sequence(leaf, torch.tensor([4, 2, 1]))
        scaled = rnn.PackedSequence(packed.data * 2, packed.batch_sizes)
        twice = on_device(scaled)[0]
        unpaired = on_device(rnn.PackedSequence(twice.data + 1, twice.batch_sizes.clone()))[0]
        padded, _ = rnn.pad_packed_sequence(rnn.PackedSequence(unpaired.data * packed.data, packed.batch_sizes))
        (padded.square().sum() + unpaired.data.square().sum()).backward()
        return seen([packed.data, packed.data.sum(0), twice.data[1:], unpaired.data, padded, leaf.grad])

    same(run("tpu"), run("cpu"))


def test_masks_of_dropout_between_layers_are_the_same_in_the_second_gradient() -> None:
    torch.manual_seed(0)
    layer = torch.nn.GRU(2, 3, 2, dropout=0.5).double().to("tpu")
    leaf = torch.randn(4, 3, 2).double().to("tpu").requires_grad_()

    def gradient(again: bool) -> torch.Tensor:
        torch.manual_seed(1)
        output, _ = layer(rnn.pack_padded_sequence(leaf, torch.tensor([4, 2, 1])))
        return torch.autograd.grad(output.data.square().sum(), leaf, create_graph=again)[0].detach().cpu()

    torch.testing.assert_close(gradient(True), gradient(False))
