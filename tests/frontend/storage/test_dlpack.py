"""DLPack: torch shares the storage; any other consumer gets a copy on the CPU, which nothing changes afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import lazytpu
from lazytpu.frontend.storage import dlpack

IMPORTS: dict[str, Callable[[torch.Tensor], object]] = {
    "numpy": np.from_dlpack,
    "numpy, by device": lambda x: np.from_dlpack(x, device="cpu"),
    "numpy, a copy": lambda x: np.from_dlpack(x, copy=True),
    "jax": jax.dlpack.from_dlpack,
    "torch, by device": lambda x: torch.from_dlpack(x, device="cpu"),
    "a capsule": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x, dl_device=(1, 0))),
    "a capsule of __dlpack__": lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__(dl_device=(1, 0), copy=True)),
}


@pytest.mark.parametrize("name", IMPORTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool], ids=str)
def test_consumers_get_the_values(name: str, dtype: torch.dtype) -> None:
    x = torch.arange(6).view(2, 3).to("tpu").to(dtype).t()  # a view of a pending value
    imported = IMPORTS[name](x)
    assert np.array_equal(np.asarray(imported), x.cpu().numpy())
    assert x.__dlpack_device__() == (1, 0), "XLA runs on the CPU here"


def test_exported_values_do_not_change() -> None:
    """The memory of the parameter is donated to its new value, step after step."""
    weight = torch.ones(1000, device="tpu")
    exported = np.from_dlpack(weight), jax.dlpack.from_dlpack(weight), torch.from_dlpack(weight, device="cpu")
    for _ in range(5):
        weight.add_(1)
        lazytpu.mark_step()
    lazytpu.sync()
    assert weight[0].item() == 6 and all(np.asarray(array).max() == 1 for array in exported)
    exported[2][0] = 7
    assert weight[0].item() == 6, "nor does writing to it change the tensor"


SHARED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "from_dlpack": torch.from_dlpack,
    "from_dlpack, by device": lambda x: torch.from_dlpack(x, device="tpu", copy=False),
    "a capsule": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "asarray of a capsule": lambda x: torch.asarray(torch.to_dlpack(x)),
    "asarray of a capsule, without a copy": lambda x: torch.asarray(torch.to_dlpack(x), device=x.device, copy=False),
}


@pytest.mark.parametrize("name", SHARED)
def test_torch_shares_the_storage(name: str) -> None:
    base = torch.arange(12.0, device="tpu").view(3, 4)
    x = base[1:].t()
    y = SHARED[name](x)
    assert (y.device.type, y.data_ptr(), y.stride()) == ("tpu", x.data_ptr(), x.stride())
    y[0] = 7
    assert base.tolist() == [[0, 1, 2, 3], [7, 5, 6, 7], [7, 9, 10, 11]]


def test_torch_copies_on_request() -> None:
    x = torch.arange(3.0, device="tpu")
    copies = (
        torch.from_dlpack(x, copy=True),
        torch.from_dlpack(torch.utils.dlpack.to_dlpack(x, copy=True)),
        torch.asarray(torch.to_dlpack(x), copy=True),
    )
    for y in copies:
        assert y.device.type == "tpu" and y.data_ptr() != x.data_ptr() and torch.equal(x, y)
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(x, device="cpu", copy=False)
    for exported in (x, x.cpu()):
        with pytest.raises(BufferError, match="Cannot pack tensors on meta"):
            torch.from_dlpack(exported, device="meta")


def test_asarray_takes_its_options() -> None:
    x = torch.arange(3.0, device="tpu")
    y = torch.asarray(torch.to_dlpack(x), dtype=torch.float64, requires_grad=True)
    assert (y.device.type, y.dtype, y.requires_grad, y.tolist()) == ("tpu", torch.float64, True, [0, 1, 2])
    on_host = torch.asarray(torch.to_dlpack(x), device="cpu")
    assert (on_host.device.type, on_host.tolist()) == ("cpu", [0, 1, 2])
    capsule = torch.to_dlpack(torch.ones(2))
    assert torch.asarray(capsule).device.type == "cpu"
    with pytest.raises(TypeError, match="unexpected keyword"):
        torch.asarray([1], size=3)  # pyright: ignore[reportCallIssue]


def test_modes_and_compile_recognise_asarray() -> None:
    class Seen(TorchFunctionMode):
        functions: ClassVar[list[Any]] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.functions.append(func)
            return func(*args, **(kwargs or {}))

    with Seen():
        torch.asarray([1, 2])
    assert Seen.functions == [torch.asarray]
    with torch.device("tpu"):
        assert torch.asarray([1, 2]).device.type == "tpu"
    compiled = torch.compile(lambda x: x + torch.asarray([1.0, 2.0]), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 3]


def test_a_capsule_is_consumed_once() -> None:
    capsule = torch.to_dlpack(torch.ones(2, device="tpu"))
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="consumed only once"):
        torch.from_dlpack(capsule)
    dropped = torch.ones(2, device="tpu")
    storage = weakref.ref(dropped.untyped_storage())
    capsule = torch.to_dlpack(dropped)
    del dropped
    assert storage() is not None
    del capsule
    assert storage() is None, "only the capsule held it"


def test_unexportable_tensors_raise() -> None:
    x = torch.ones(3, device="tpu")
    refused: dict[str, Callable[[], object]] = {
        "copy=False asks for none": lambda: np.from_dlpack(x, copy=False),
        "copy=False asks": lambda: torch.utils.dlpack.to_dlpack(x, copy=False),
        "to the CPU alone": lambda: x.__dlpack__(dl_device=(2, 0)),
        "require gradient": x.clone().requires_grad_().__dlpack__,
        "conjugate bit": x.to(torch.complex64).conj().__dlpack__,
        "torch.strided": x.to_sparse().__dlpack__,
        "export tensors that require": lambda: torch.from_dlpack(x.clone().requires_grad_()),
        "the conjugate bit": lambda: torch.from_dlpack(x.to(torch.complex64).conj()),
        "other than torch.strided": lambda: torch.from_dlpack(x.to_sparse()),
    }
    for message, export in refused.items():
        with pytest.raises(BufferError, match=message):
            export()


def test_streams_are_checked_and_ignored() -> None:
    x = torch.ones(3, device="tpu")
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream=object())
    assert torch.from_dlpack(x.__dlpack__(stream=1)).tolist() == [1, 1, 1]


def test_on_other_platforms_the_copy_must_be_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlpack, "_on_host", lambda: False)
    x = torch.arange(3.0).to("tpu")
    assert x.__dlpack_device__() == (12, 0)
    for export in (lambda: np.from_dlpack(x), lambda: torch.utils.dlpack.to_dlpack(x)):
        with pytest.raises(BufferError, match=r"device='cpu' of numpy\.from_dlpack\), or export tensor\.cpu\(\)"):
            export()
    assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2]


def test_cpu_tensors_are_exported_as_before() -> None:
    x = torch.arange(3.0)
    y = torch.from_dlpack(np.from_dlpack(x))
    y[0] = 7
    assert x[0] == 7
    assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
