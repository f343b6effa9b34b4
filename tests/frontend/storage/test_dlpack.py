"""DLPack: a consumer gets a copy on the CPU, with the present values, which nothing changes afterwards."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch

import lazytpu
from lazytpu.frontend.storage import dlpack

IMPORTS: dict[str, Callable[[torch.Tensor], object]] = {
    "numpy": np.from_dlpack,
    "numpy, by device": lambda x: np.from_dlpack(x, device="cpu"),
    "numpy, a copy": lambda x: np.from_dlpack(x, copy=True),
    "jax": jax.dlpack.from_dlpack,
    "torch": torch.from_dlpack,
    "a capsule": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)),
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
    exported = np.from_dlpack(weight), jax.dlpack.from_dlpack(weight), torch.from_dlpack(weight)
    for _ in range(5):
        weight.add_(1)
        lazytpu.mark_step()
    lazytpu.sync()
    assert weight[0].item() == 6 and all(np.asarray(array).max() == 1 for array in exported)
    exported[2][0] = 7
    assert weight[0].item() == 6, "nor does writing to it change the tensor"


def test_unexportable_tensors_raise() -> None:
    x = torch.ones(3, device="tpu")
    refused: dict[str, Callable[[], object]] = {
        "copy=False asks for none": lambda: np.from_dlpack(x, copy=False),
        "copy=False asks": lambda: torch.utils.dlpack.to_dlpack(x, copy=False),
        "to the CPU alone": lambda: x.__dlpack__(dl_device=(2, 0)),
        "require gradient": x.clone().requires_grad_().__dlpack__,
        "conjugate bit": x.to(torch.complex64).conj().__dlpack__,
        "torch.strided": x.to_sparse().__dlpack__,
    }
    for message, export in refused.items():
        with pytest.raises(BufferError, match=message):
            export()


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
