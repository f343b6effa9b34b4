"""`lazytpu.imagined_job`: a process group of many ranks of which this process is the only one."""

from __future__ import annotations

import os
import sys
from functools import wraps
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lazytpu.distributed import imagined
from lazytpu.distributed.imagined import Job
from lazytpu.runtime.tpu.topology import Topology


class ImaginedJob:
    """A context manager: in its block this process is rank `rank` of a job of `ranks` processes, the others of which do
    not exist. With a `topology`, there is a rank for each of its devices. Raises ValueError for a rank that the job
    does not have, and for another number of ranks."""

    def __init__(self, ranks: int | None = None, rank: int = 0, topology: str | None = None):
        self.topology = None if topology is None else Topology.parse(topology)
        if ranks is None:
            if self.topology is None:
                raise ValueError("imagined_job takes the number of ranks, or the topology of their chips")
            ranks = self.topology.devices
        if self.topology is not None and ranks != self.topology.devices:
            raise ValueError(f"the job has {ranks} ranks, and {self.topology} has {self.topology.devices} devices")
        for number in (ranks, rank):
            if not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"imagined_job takes a number of ranks and a rank, both integers, not {number!r}")
        if ranks < 1:
            raise ValueError(f"imagined_job takes the number of ranks, at least 1, not {ranks}")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is not one of the {ranks} ranks of the imagined job, 0 to {ranks - 1}")
        self.ranks = ranks
        self.rank = rank
        self._job: Job | None = None
        self._environment: dict[str, str | None] = {}
        self._init: Any = None
        self._excepthook: Any = None

    def __enter__(self) -> ImaginedJob:
        """Create the process group. Raises RuntimeError in another imagined job, or in a process group."""
        if imagined.is_imagined():
            raise RuntimeError("imagined jobs do not nest: leave the block of the other one first")
        if dist.is_initialized():
            raise RuntimeError(
                f"this process is rank {dist.get_rank()} of a job of {dist.get_world_size()} that exists, so it cannot "
                "imagine another one. Use imagined_job in a process without a group, or call "
                "torch.distributed.destroy_process_group() first"
            )
        variables = {"RANK": self.rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        self._environment = {name: os.environ.get(name) for name in variables}
        os.environ.update({name: str(value) for name, value in variables.items()})
        imagined.JOB = self._job = Job(self.ranks, self.rank, self.topology)
        self._init, self._excepthook = dist.init_process_group, sys.excepthook
        dist.init_process_group = distributed_c10d.init_process_group = self._already(self._init)
        try:
            self._initialize()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        """Destroy the process groups. Tensors keep their values; what uses a group raises RuntimeError from now on."""
        assert self._job is not None
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        finally:
            self._job.ended, imagined.JOB = True, None
            dist.init_process_group = distributed_c10d.init_process_group = self._init
            sys.excepthook = self._excepthook
            for name, value in self._environment.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _initialize(self) -> None:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        self._init("tpu", store=store, rank=self.rank, world_size=self.ranks)

    def _already(self, native: Any) -> Any:
        """Wrap `init_process_group`: a script calls it, though the block has created the group already."""

        @wraps(native)
        def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
            if backend is not None and "tpu" not in str(backend):
                raise ValueError(f"the backend of an imagined job is 'tpu', not {str(backend)!r}")
            for name, own in (("world_size", self.ranks), ("rank", self.rank)):
                if kwargs.get(name, -1) not in (-1, own):
                    raise ValueError(f"the imagined job has {name} {own}, not {kwargs[name]}")
            if not dist.is_initialized():
                self._initialize()

        return init_process_group
