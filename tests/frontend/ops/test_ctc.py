"""ctc_loss in the forms that users call: lengths as lists and tensors on either device, padded and concatenated
targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lazytpu

PADDED = torch.tensor([[1, 2, 2], [3, 3, 1], [2, 0, 0]])
ROW = torch.tensor([1, 2, 2, 3, 3, 2])
LENGTHS = [3, 2, 1]
STEPS = [8, 6, 5]


def logits() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 3, 4)


def loss_and_gradient(device: str, targets: torch.Tensor, lengths: Callable[[list[int]], Any], **options: Any) -> Any:
    x = logits().to(device).requires_grad_()
    steps, sizes = (lengths(n) for n in (STEPS, LENGTHS))
    loss = F.ctc_loss(x.log_softmax(-1), targets.to(device), steps, sizes, **options)
    loss.sum().backward()
    assert x.grad is not None
    return loss.detach().cpu(), x.grad.cpu()


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "lists": lambda n: n,
    "tensors on the CPU": torch.tensor,
    "tensors on tpu": lambda n: torch.tensor(n, device="tpu"),
    "int32 tensors on tpu": lambda n: torch.tensor(n, device="tpu", dtype=torch.int32),
}


@pytest.mark.parametrize("targets", [PADDED, ROW], ids=["padded", "concatenated"])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, targets: torch.Tensor) -> None:
    reduction = "none" if form.startswith("int32") else "mean"
    got = loss_and_gradient("tpu", targets, FORMS[form], reduction=reduction)
    for g, want in zip(got, loss_and_gradient("cpu", targets, lambda n: n, reduction=reduction), strict=True):
        torch.testing.assert_close(g, want)


def test_one_row() -> None:
    x = logits()[:, 0].log_softmax(-1)
    want = F.ctc_loss(x, ROW[:3], torch.tensor(8), torch.tensor(3))
    got = F.ctc_loss(x.to("tpu"), ROW[:3].to("tpu"), *(torch.tensor(n, device="tpu") for n in (8, 3)))
    torch.testing.assert_close(got.cpu(), want)


def test_infinite_losses() -> None:
    for form in ("lists", "tensors on tpu"):
        x = logits().log_softmax(-1).to("tpu")
        lengths = [FORMS[form](n) for n in ([1, 1, 1], [3, 3, 1])]
        losses = F.ctc_loss(x, PADDED.to("tpu"), *lengths, reduction="none", zero_infinity=True)
        assert losses[:2].tolist() == [0.0, 0.0] and losses[2].item() > 0


@pytest.mark.usefixtures("empty_cache")
def test_new_lengths_reuse_the_program() -> None:
    x, targets = logits().log_softmax(-1).to("tpu"), PADDED.to("tpu")
    before = 0
    for i, lengths in enumerate(([3, 2, 1], [1, 1, 3], [2, 2, 2])):
        F.ctc_loss(x, targets, [8, 6, 5 + i], lengths, reduction="none").cpu()
        compiles = lazytpu.metrics()["compiles"]
        assert i == 0 or compiles == before
        before = compiles


@pytest.mark.parametrize(
    ("steps", "lengths", "message"),
    [
        ([9, 8, 8], [1, 1, 1], "at most 8, but got value 9"),
        ([8, 8, -1], [1, 1, 1], "at least 0"),
        ([8, 8, 8], [4, 1, 1], "at least 4"),
        ([8, 8], [1, 1, 1], "batch_size"),
    ],
)
def test_refused_at_the_call(steps: list[int], lengths: list[int], message: str) -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match=message):
            F.ctc_loss(logits().to(device), PADDED.to(device), steps, lengths)


def test_dtypes_that_are_refused() -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
            F.ctc_loss(logits().half().to(device), PADDED.to(device), STEPS, LENGTHS)
        with pytest.raises(RuntimeError, match="integral"):
            F.ctc_loss(logits().to(device), PADDED.to(device), *(torch.tensor(n).float() for n in (STEPS, LENGTHS)))


@pytest.mark.parametrize("where", [torch.tensor([1, 3]), torch.tensor(3)], ids=["indices", "sections"])
def test_tensor_split(where: torch.Tensor) -> None:
    """Views at indices on the device, and their gradients."""
    pieces: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x = torch.ones(3, 4).to(device).requires_grad_()
        views = torch.tensor_split(x, where.to(device), dim=1)
        assert views[1]._base is x
        sum((i + 1) * p.sum() for i, p in enumerate(views)).backward()
        assert x.grad is not None
        pieces.append(x.grad.cpu())
    assert torch.equal(*pieces)


@pytest.mark.parametrize(
    "where",
    [torch.tensor([1.0]), torch.tensor(1, dtype=torch.int32), torch.tensor([[1]])],
    ids=["Float", "Int", "2 dims"],
)
def test_tensor_split_refuses_indices_as_torch_does(where: torch.Tensor, request: pytest.FixtureRequest) -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match=f"got .*{request.node.callspec.id}"):
            torch.tensor_split(torch.ones(4, device=device), where.to(device))
