"""vLLM's worker on one device: how it comes up, and how much memory the cache gets."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from typing import Any

import torch
from vllm import envs
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from lazytpu_vllm.runner import TpuModelRunner
from lazytpu_vllm.warmup import warm_up


def end_with_parent() -> None:
    """End this process when the one that started it has ended, however it did: vLLM's engine, which ends by signals
    alone, would keep the device of a server that was killed. An engine in the process of a script leaves it alone."""
    parent = multiprocessing.parent_process()
    if parent is None or not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


class TpuWorker(Worker):
    def init_device(self) -> None:
        """Choose the device and create the model runner. vLLM's own names CUDA."""
        end_with_parent()
        self.device = torch.device("tpu", self.local_rank)
        torch.tpu.set_device(self.device)
        method = self.distributed_init_method
        init_worker_distributed_environment(self.vllm_config, self.rank, method, self.local_rank, "gloo")
        set_random_seed(self.model_config.seed)
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = self.cache_config.kv_cache_memory_bytes or self._of_the_device()
        init_workspace_manager(self.device, 1)
        self.model_runner = TpuModelRunner(self.vllm_config, self.device)

    def _of_the_device(self) -> int:
        """Return the bytes that vLLM may use, which have to be free. A CPU's memory is that of all programs of the
        machine: there, half of the free bytes."""
        if torch.tpu.get_device_properties(self.device).platform == "tpu":
            return request_memory(self.init_snapshot, self.cache_config)
        return self.init_snapshot.free_memory // 2

    def determine_available_memory(self) -> int:
        """Return the bytes for the cache: those requested, less the weights and as much again as room for a step; on a
        CPU no more than all requests that may run at once can fill.

        `LLM(kv_cache_memory_bytes=...)` names them instead.
        """
        if self.cache_config.kv_cache_memory_bytes:
            return self.cache_config.kv_cache_memory_bytes
        room = max(int(self.requested_memory - 2 * torch.tpu.memory_allocated(self.device)), 0)
        if torch.tpu.get_device_properties(self.device).platform == "tpu":
            return room
        specs, requests = self.get_kv_cache_spec().values(), self.vllm_config.scheduler_config.max_num_seqs
        filled = sum(requests * spec.max_memory_usage_bytes(self.vllm_config) + spec.page_size_bytes for spec in specs)
        return min(room, filled)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Make the programs of all steps, unless `enforce_eager` leaves them to the first requests."""
        begin = time.monotonic()
        if not self.model_config.enforce_eager and not self.model_runner.is_pooling_model:
            warm_up(self, self.model_runner)
        set_random_seed(self.model_config.seed)
        return CompilationTimes(time.monotonic() - begin, 0.0)

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        return contextlib.nullcontext()

    def _scoped_allocator_max_split(self, *args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext()
