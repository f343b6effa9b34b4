"""Storages of the device: saving, loading, copying and pickling keep contents, layout and sharing."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any

import pytest
import torch

from lazytpu.trace.value import EMPTY
from tests import zygote


def on_tpu(*size: int) -> torch.Tensor:
    count = torch.Size(size).numel()
    return torch.arange(float(count)).reshape(size).to("tpu")


def held(tensor: torch.Tensor) -> Any:
    storage: Any = tensor.untyped_storage()
    return storage._value


def saved(obj: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return file


def test_size_address_and_bytes() -> None:
    x = on_tpu(2, 3)
    storage = x.untyped_storage()
    assert storage.nbytes() == storage.size() == len(storage) == 24
    assert storage.device == x.device
    assert storage.data_ptr() == x.data_ptr() != 0
    assert x[1].data_ptr() == x.data_ptr() + 12
    assert on_tpu(2).data_ptr() != on_tpu(2).data_ptr()
    assert torch.empty(0, device="tpu").data_ptr() == 0
    assert x.view(-1).untyped_storage().data_ptr() == storage.data_ptr()
    assert storage.tolist() == x.cpu().untyped_storage().tolist()
    assert storage[3] == 0
    assert storage.is_tpu
    assert not x.cpu().untyped_storage().is_tpu


def test_other_storages_are_as_before() -> None:
    x = torch.arange(6.0)
    storage = x.untyped_storage()
    assert storage.nbytes() == len(storage) == 24
    assert storage.cpu() is storage
    assert storage.clone().tolist() == storage.tolist()
    assert torch.UntypedStorage(8).resize_(16).nbytes() == 16
    assert len(torch.UntypedStorage(3)) == 3
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"
    assert copy.deepcopy(x).untyped_storage().data_ptr() != storage.data_ptr() == x.data_ptr()


def test_new_storage() -> None:
    storage = torch.UntypedStorage(12, device="tpu")
    assert storage.nbytes() == 12
    assert storage.device.type == "tpu"
    x = torch.empty(0, device="tpu").set_(storage, 0, (3,), (1,))
    x.fill_(2)
    assert x.tolist() == [2, 2, 2]


def test_to_and_from_the_cpu() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    storage = x.untyped_storage().to(device="tpu")
    assert storage.device == torch.device("tpu", 0)
    assert storage.to(device="tpu") is storage
    x.zero_()  # the copy is a snapshot
    y = torch.empty(0, device="tpu").set_(storage, 0, (2, 3), (3, 1))
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert held(y).layout.shape == (2, 3)
    back = y.t().untyped_storage().cpu()
    assert torch.empty(0).set_(back, 0, (6,), (1,)).tolist() == [0, 1, 2, 3, 4, 5]


def test_copies_between_storages() -> None:
    x, y = on_tpu(4), torch.zeros(4).to("tpu")
    y.untyped_storage().copy_(x.untyped_storage())
    assert y.tolist() == [0, 1, 2, 3]
    y.untyped_storage().copy_(torch.ones(4).untyped_storage())
    z = torch.zeros(4)
    z.untyped_storage().copy_(y.untyped_storage())
    assert z.tolist() == [1, 1, 1, 1]
    assert x.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="size does not match, self was 16 bytes but src was 8 bytes"):
        y.untyped_storage().copy_(torch.ones(2).untyped_storage())


def test_resizing_frees_and_gives_back() -> None:
    x = on_tpu(2, 3)
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    assert held(x).buffer is EMPTY
    x.untyped_storage().resize_(24)
    assert held(x).layout.shape == (2, 3)
    x.copy_(torch.ones(2, 3))
    assert x.sum().item() == 6
    y = on_tpu(4)
    y.untyped_storage().resize_(32)
    assert y.tolist() == [0, 1, 2, 3]
    assert y.untyped_storage().nbytes() == 32


def test_save_and_load_share_storage() -> None:
    x = on_tpu(4, 3)
    loaded = torch.load(saved({"x": x, "row": x[1:], "t": x.t()}))
    assert loaded["x"].device.type == "tpu"
    assert loaded["x"].tolist() == x.tolist()
    loaded["x"][1].zero_()
    assert loaded["row"][0].tolist() == [0, 0, 0]
    assert loaded["t"][:, 1].tolist() == [0, 0, 0]
    assert x[1].tolist() == [3, 4, 5]


def test_loaded_tensors_have_their_natural_layout() -> None:
    original = torch.randn(2, 3, 4, 5).to("tpu").to(memory_format=torch.channels_last)
    loaded = torch.load(saved([original, original.bfloat16(), torch.tensor(3).to("tpu")]))
    kinds = [held(t).layout for t in loaded]
    assert [k.dtype for k in kinds] == [torch.float32, torch.bfloat16, torch.int64]
    assert all((k.shape, k.stride) == (tuple(t.shape), t.stride()) for k, t in zip(kinds, loaded, strict=True))
    assert torch.equal(loaded[0].cpu(), original.cpu())


@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location(weights_only: bool) -> None:
    x = torch.arange(4.0)
    assert torch.load(saved(x), map_location="tpu", weights_only=weights_only).device == torch.device("tpu", 0)
    y = torch.load(saved(x.to("tpu")), map_location="cpu", weights_only=weights_only)
    assert y.device.type == "cpu"
    assert torch.equal(x, y)


def test_first_tensor_may_be_loaded() -> None:
    """The engine has not started before the storage is moved; and torch without lazytpu reads the device's files."""
    code = """
import io, sys, torch, lazytpu
file = io.BytesIO()
torch.save([torch.arange(4.0), torch.nn.Linear(2, 2).state_dict()], file)
file.seek(0)
x, state = torch.load(file, map_location="tpu")
assert x.device.type == state["weight"].device.type == "tpu" and (x + 1).tolist() == [1, 2, 3, 4]
torch.save(x, sys.argv[1])
"""
    alone = "import sys, torch; assert torch.load(sys.argv[1], map_location='cpu').tolist() == [0, 1, 2, 3]"
    with tempfile.NamedTemporaryFile() as file:
        zygote.run(["-c", code, file.name], check=True)
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run([sys.executable, "-c", alone, file.name], check=True, timeout=300, env=environment)


def test_pickle_copies_each_storage() -> None:
    x = on_tpu(4, 3)
    a, b = pickle.loads(pickle.dumps((x, x[1:])))
    assert a.device.type == "tpu"
    assert a.tolist() == x.tolist()
    a.zero_()
    assert b.tolist() == x[1:].tolist()
    p = pickle.loads(pickle.dumps(torch.nn.Parameter(x)))
    assert isinstance(p, torch.nn.Parameter)
    assert p.requires_grad
    assert p.tolist() == x.tolist()
    assert pickle.loads(pickle.dumps(torch.empty(0, 2, device="tpu"))).shape == (0, 2)


def test_deepcopy_shares_storage_among_copies() -> None:
    x = on_tpu(4, 3)
    y, row = copy.deepcopy([x, x[1]])
    row.zero_()
    assert y[1].sum().item() == 0
    assert x[1].tolist() == [3, 4, 5]
    module = torch.nn.Linear(2, 2).to("tpu")
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.weight.zero_()
    assert module.weight.abs().sum().item() > 0
    assert copied.weight.device.type == "tpu"


def test_subclasses_keep_their_class() -> None:
    class Mine(torch.nn.Parameter):
        pass

    x = Mine(on_tpu(3))
    y = copy.deepcopy(x)
    assert type(y) is type(on_tpu(3).as_subclass(Mine)) is Mine
    with torch.no_grad():
        y.zero_()
    assert x.tolist() == [0, 1, 2]
