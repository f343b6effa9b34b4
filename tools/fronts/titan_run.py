"""Run the launcher of examples/titan, and write the loss and the compilations of each step as lines of JSON.

    torchrun tools/fronts/titan_run.py DEVICE FILE [Titan's options]

With the device "cpu", Titan trains on torch's CPU: the reference. Titan itself has no such setting.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LAUNCHER = Path(__file__).parents[2] / "examples/titan/train.py"
MEMORY = ("active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries", "num_ooms")


def main() -> None:
    device, file = sys.argv[1], Path(sys.argv[2])
    del sys.argv[1:3]
    if device == "cpu":
        offer_cpu()
    sys.path.insert(0, str(LAUNCHER.parent))
    import torch_2_13

    torch_2_13.add()
    if device == "cpu":
        spell_attention_out()
    if os.environ["RANK"] == "0":
        note_steps(file, device)
    runpy.run_path(str(LAUNCHER), run_name="__main__")


def note_steps(file: Path, device: str) -> None:
    """Append a line for each step that Titan logs."""
    from torchtitan.components.metrics import MetricsProcessor

    original = MetricsProcessor.log

    def log(self: Any, step: int, global_avg_loss: float, *args: Any, **kwargs: Any) -> None:
        original(self, step, global_avg_loss, *args, **kwargs)
        line: dict[str, Any] = {"step": step, "loss": global_avg_loss}
        if device == "tpu":
            import lazytpu

            line |= {name: lazytpu.metrics()[name] for name in ("compiles", "cpu_fallbacks")}
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    MetricsProcessor.log = log


def offer_cpu() -> None:
    """Make the CPU torch's accelerator, with the functions of a device that Titan calls."""
    cpu: Any = torch.cpu
    private: Any = torch._C
    torch._utils._get_available_device_type = lambda: "cpu"
    private._get_accelerator = lambda: torch.device("cpu")
    cpu.Stream.synchronize = lambda self: None
    cpu.get_device_properties = lambda *device: SimpleNamespace(total_memory=8 << 30, name="cpu")
    cpu.get_device_name = lambda *device: "cpu"
    cpu.memory_stats = lambda *device: dict.fromkeys(MEMORY, 0)
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *device: None
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    factors = collectives._get_gradient_divide_factors

    def summed(*args: Any, **kwargs: Any) -> Any:
        """Gloo has no PREMUL_SUM, so gradients are scaled apart from their sum."""
        return factors(*args[:5], force_sum_reduction_for_comms=True)

    collectives._get_gradient_divide_factors = summed


def spell_attention_out() -> None:
    """FlexAttention has no backward on the CPU: compute it with a mask of all positions there."""
    from torchtitan.models.common import attention

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        block_mask: Any,
        scale: float | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if enable_gqa:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        sizes = (*q.shape[:3], k.shape[2])
        mask = block_mask.mask_mod(*torch.meshgrid(*[torch.arange(n) for n in sizes], indexing="ij"))
        scores = (q.float() @ k.float().transpose(-1, -2)) * (scale or q.shape[-1] ** -0.5)
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).to(q.dtype) @ v, None

    attention.FlexAttention._compiled_flex_attn = staticmethod(attend)


if __name__ == "__main__":
    main()
