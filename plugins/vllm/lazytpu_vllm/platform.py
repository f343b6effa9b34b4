"""The device, as vLLM asks for it: its memory, dtypes, attention, and the settings that it does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BLOCK = 16  # tokens of a block of the cache


class TpuPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "tpu"
    dispatch_key = "PrivateUse1"
    dist_backend = "gloo"
    simple_compile_backend = "eager"
    device_control_env_var = "TPU_VISIBLE_CHIPS"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float32, torch.float16]

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's own kernels are CUDA's."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> None:
        return None

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return _properties(device_id).name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return _properties(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return torch.tpu.memory_allocated(device)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.tpu.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.tpu.manual_seed_all(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> str:
        """Attention to the paged cache by lazytpu's kernel; of encoders, which have no cache, by flex_attention."""
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError("lazytpu-vllm has no latent (MLA) and no sparse attention")
        if attn_selector_config.attn_type == "encoder_only":
            return "vllm.v1.attention.backends.flex_attention.FlexAttentionBackend"
        return "lazytpu_vllm.attention.PagedAttentionBackend"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Every dtype that vLLM computes in works."""

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return False

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 1

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Choose the worker, and leave compiling to lazytpu: neither Dynamo nor graphs of CUDA."""
        from vllm.config import CompilationMode, CUDAGraphMode

        parallel, compilation = vllm_config.parallel_config, vllm_config.compilation_config
        if parallel.world_size > 1:
            raise NotImplementedError("lazytpu-vllm serves on one device: set tensor and pipeline parallel sizes to 1")
        parallel.worker_cls = "lazytpu_vllm.worker.TpuWorker"
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = BLOCK


def _properties(device_id: int) -> Any:
    """Return the properties of the device that the engine has started.

    vLLM also asks in the process that starts the engine's, for its defaults, and goes on without an answer. That
    process must not start the device: it would keep the chip, and its children could not be forked.
    """
    if not torch.tpu.is_initialized():
        raise RuntimeError("the device is not started in this process: vLLM's engine starts it in its own")
    return torch.tpu.get_device_properties(device_id)
