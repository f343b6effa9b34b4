"""vLLM's engine on lazytpu's device: `pip install lazytpu-vllm`, and vLLM finds the plugin by its entry point."""

from __future__ import annotations


def register() -> str:
    """Return the class of the platform: the entry point that vLLM calls."""
    return "lazytpu_vllm.platform.TpuPlatform"
