"""Registering one kernel in place of another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


def replace_kernel(
    library: torch.library.Library, name: str, kernel: Callable[..., Any], key: str = "PrivateUse1"
) -> None:
    """Register `kernel` for an op of the device, or of another key, that has one already. torch would warn once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, key)
