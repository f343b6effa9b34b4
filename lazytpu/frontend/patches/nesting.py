"""`torch.nested.nested_tensor` of strided layout: refused, as each op on its result would be.

torch makes it by a kernel of the device of its parts, the CPU, and moves only the buffer: no kernel of ours is called.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lazytpu.frontend.ops.jagged import strided_nested


def install() -> None:
    """Refuse a strided nested tensor of the device where it is made."""
    make = torch.nested.nested_tensor

    @functools.wraps(make)
    def nested_tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        result = make(*args, **kwargs)
        if result.device.type == "tpu" and result.layout is torch.strided:
            strided_nested()
        return result

    torch.nested.nested_tensor = nested_tensor
