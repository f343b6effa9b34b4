"""`dir()` shows the public names, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lazytpu

TPU: Any = torch.get_device_module("tpu")


@pytest.mark.parametrize("module", [lazytpu, TPU], ids=["lazytpu", "torch.tpu"])
def test_dir_lists_the_public_names(module: Any) -> None:
    names = dir(module)
    assert set(names) - {"__version__"} == set(module.__all__)
    assert all(hasattr(module, name) for name in names)
