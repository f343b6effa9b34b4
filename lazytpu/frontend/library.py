"""Registration of a kernel in place of another one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


def replace_kernel(
    library: torch.library.Library, name: str, kernel: Callable[..., Any], key: str = "PrivateUse1"
) -> None:
    """Register `kernel` for an op that already has a kernel under `key`, without torch's warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, key)
