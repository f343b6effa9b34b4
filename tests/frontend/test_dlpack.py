"""DLPack: only a copy on the CPU can be exported."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def test_tpu_tensors_are_refused() -> None:
    x = torch.ones(3).to("tpu")
    for export in (
        x.__dlpack__,
        x.__dlpack_device__,
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: np.from_dlpack(x),
    ):
        with pytest.raises(BufferError, match=r"Export a copy on the CPU instead: tensor\.cpu\(\)"):
            export()
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0), copy=False)


def test_a_copy_on_the_cpu_can_be_asked_for() -> None:
    class Consumer:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.capsule = tensor.__dlpack__(dl_device=(1, 0), copy=True)

    x = torch.arange(3.0).to("tpu")
    assert torch.utils.dlpack.from_dlpack(Consumer(x).capsule).tolist() == [0, 1, 2]


def test_cpu_tensors_are_exported_as_before() -> None:
    x = torch.arange(3.0)
    y = torch.from_dlpack(np.from_dlpack(x))
    y[0] = 7
    assert x[0] == 7
    assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
