"""Wrapper subclasses, which contain tensors and have no memory, where lazytpu meets them outside the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import lazytpu
from lazytpu.frontend.names import slot_names
from lazytpu.frontend.tensors import parts, recorder

ROWS = torch.arange(12.0).reshape(3, 4)


def two(device: str) -> Tensor:
    return TwoTensor(ROWS.to(device), ROWS.to(device) + 1)


def nested(device: str) -> Tensor:
    return TwoTensor(two(device), two(device))


def jagged(device: str) -> Tensor:
    return torch.nested.nested_tensor([ROWS, ROWS[:2]], layout=torch.jagged).to(device)


def sparse(device: str) -> Tensor:
    return ROWS.to_sparse().to(device)


def dense(tensor: Tensor) -> list[Tensor]:
    return [tensor_part.cpu() for _, tensor_part in parts(tensor)]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (two, ["a", "b"]),
        (nested, ["a.a", "a.b", "b.a", "b.b"]),
        (jagged, ["_values", "_offsets"]),
        (sparse, ["indices", "values"]),
    ],
)
def test_parts_have_names(make: Callable[[str], Tensor], names: list[str]) -> None:
    assert [name for name, _ in parts(make("tpu"))][: len(names)] == names
    assert not list(parts(make("cpu")))


def test_parts_of_others() -> None:
    x = torch.ones(2, device="tpu")
    assert [tensor_part is x for _, tensor_part in parts(x)] == [True]
    assert not list(parts(None)) and not list(parts(torch.empty(2, device="meta")))
    torch.vmap(lambda row: row + len(list(parts(row))))(torch.ones(2, 2, device="tpu"))


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op is torch.ops.aten.sin.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("kind", ["not reentrant", "reentrant", "selective", "in a tree", "nested"])
@pytest.mark.parametrize("make", [two, nested, jagged])
def test_checkpoint(make: Callable[[str], Tensor], kind: str) -> None:
    options: dict[str, Any] = {"use_reentrant": kind == "reentrant"}
    if kind == "selective":
        options["context_fn"] = lambda: create_selective_checkpoint_contexts(_policy)

    def function(x: Any) -> Tensor:
        x = x["x"][0] if kind == "in a tree" else x
        return checkpoint(lambda y: (y * y).sin(), x, use_reentrant=False) if kind == "nested" else x.sin() * x

    def gradient(device: str) -> Tensor:
        leaf = make(device).detach().requires_grad_()
        x = leaf * 2
        checkpoint(function, {"x": [x]} if kind == "in a tree" else x, **options).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    torch.testing.assert_close(dense(gradient("tpu")), list(_host_parts(gradient("cpu")))[: len(dense(make("tpu")))])


def _host_parts(tensor: Any) -> Iterator[Tensor]:
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        if "seqlen" not in name:  # of jagged tensors, on the CPU everywhere
            yield from _host_parts(getattr(tensor, name))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_of_a_sparse_tensor(reentrant: bool) -> None:
    weight = torch.ones(4, 2, device="tpu", requires_grad=True)
    factor = sparse("tpu")
    _ = weight * 2  # some op is pending
    checkpoint(lambda a, b: torch.sparse.mm(a, b), factor, weight, use_reentrant=reentrant).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.cpu(), ROWS.sum(0)[:, None].expand(4, 2))


def test_names_and_owners() -> None:
    """A parameter that wraps tensors is named in a program, and counted like any other."""
    before = lazytpu.memory().by_category().get("parameters")
    model = nn.Linear(64, 64, device="tpu")
    model.bias = nn.Parameter(TwoTensor(model.bias.detach(), model.bias.detach() + 1))
    lazytpu.sync()
    _ = model.weight + 1, model.bias + 1
    names = set(slot_names(recorder().epoch).values())
    assert {"weight", "bias.a", "bias.b"} <= names
    bytes_now = lazytpu.memory().by_category()["parameters"].nbytes
    assert bytes_now - (before.nbytes if before else 0) == 64 * 64 * 4 + 2 * 64 * 4


def test_storage_without_memory() -> None:
    """Its methods raise the same errors as on the CPU."""
    storage = two("tpu").untyped_storage()
    assert storage.nbytes() == two("cpu").untyped_storage().nbytes() == 48
    for use in (storage.data_ptr, storage.clone, storage.tolist, lambda: storage.resize_(0), lambda: storage[0]):
        with pytest.raises(RuntimeError, match="invalid python storage"):
            use()


def test_exchange_refuses_wrappers() -> None:
    with pytest.raises(RuntimeError, match="to_jax takes a dense tensor; a TwoTensor"):
        lazytpu.interop.to_jax(two("tpu"))
    with pytest.raises(BufferError, match="Can't export a TwoTensor"):
        torch.from_dlpack(two("tpu"))
    torch.testing.assert_close(dense(lazytpu.interop.call_jax(_double, two("tpu"))), [ROWS * 2, ROWS * 2 + 2])


def _double(x: Any) -> Any:
    return x * 2


def test_marks() -> None:
    for make in (two, jagged, sparse):
        x = make("tpu")
        lazytpu.mark_dynamic(x, 0)
        assert len(dense(x + x)) >= 2
