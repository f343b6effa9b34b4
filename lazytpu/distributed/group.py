"""The process group "tpu": collectives of device tensors are recorded; CPU tensors go to a gloo group inside it.

A call launches nothing: a collective is a record like any op, and its handle is complete at once. So the ops between
two collectives form one program. Tensors may have any layout; they are made dense before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lazytpu.distributed import reductions
from lazytpu.distributed.dense import dense, put
from lazytpu.distributed.host_tensors import HostTensors
from lazytpu.distributed.ops import OPS
from lazytpu.distributed.point_to_point import PointToPoint
from lazytpu.distributed.sparse import SparseTensors, refuse
from lazytpu.distributed.splitting import Splitting
from lazytpu.distributed.unequal import UnequalParts
from lazytpu.distributed.work import Recorded
from lazytpu.distributed.world import World, finish

F = TypeVar("F", bound=Callable[..., Any])


def _on_device(tensors: Any) -> bool:
    while isinstance(tensors, list | tuple):
        if not tensors:
            return False
        tensors = tensors[0]
    return tensors.device.type == "tpu"


def _check_devices(name: str, tensors: Any) -> None:
    """Raise ValueError if a tensor is on another device than "tpu"."""
    for nested in tensors:
        if isinstance(nested, list | tuple):
            _check_devices(name, nested)
        elif nested.device.type != "tpu":
            raise ValueError(f"{name} expected all of its tensors on 'tpu'; one is on {str(nested.device)!r}")


def collective(method: F) -> F:
    """Decorate a method for device tensors: calls with CPU tensors go to gloo's method of the same name."""

    @wraps(method)
    @torch.no_grad()
    def call(self: DeviceGroup, *args: Any, **kwargs: Any) -> Any:
        tensors = [argument for argument in args[:2] if isinstance(argument, list | torch.Tensor)]
        if any(map(_on_device, tensors)):
            _check_devices(method.__name__, tensors)
            if method.__name__ not in ("allreduce", "allreduce_coalesced"):
                refuse(method.__name__, tensors)
            return method(self, *args, **kwargs)
        return self.on_host(method.__name__, *args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


class DeviceGroup(UnequalParts, SparseTensors, Splitting, dist.ProcessGroup):
    """The collectives of a process group of the global ranks `members`. `rank` is this process's index in it; `name` is
    equal on all members. A subclass records an op (`_record`), returns handles (`_handle`), and runs collectives of CPU
    tensors (`on_host`)."""

    def __init__(self, name: str, members: Sequence[int], rank: int):
        dist.ProcessGroup.__init__(self, rank, len(members))  # pyright: ignore[reportCallIssue]
        self.members = list(members)
        self.key = name
        self.named = self.described = ""

    def own_part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this member's part of a tensor, which is divided along `dim` into equal parts. A program that all
        ranks run computes the member's number."""
        return self._own_part(tensor, dim, tensor.shape[dim] // self.size())

    def _own_part(self, tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        return OPS.own_part(tensor, dim, count, self.rank(), self.members)

    # -- reductions

    def _reduced(self, tensor: torch.Tensor, options: Any) -> torch.Tensor:
        """Record the all_reduce of `tensor`; XLA has no bitwise reductions across processes, so these are gathered and
        combined."""
        kind, factor = reductions.reduce_op(options)
        if reductions.is_bitwise(kind):
            return reductions.combined(kind, self._gathered(tensor))
        of_dtype = reductions.kind_of(kind, tensor.dtype)
        x = dense(reductions.before(kind, factor, tensor))
        return reductions.after(kind, self._record(OPS.all_reduce, x, of_dtype), self.size())

    @collective
    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            if tensor.is_sparse:
                self.reduce_sparse(tensor, opts)
            else:
                put(tensor, self._reduced(tensor, opts))
        return self._handle(tensors)

    @collective
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    @collective
    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            reduced = self._reduced(tensor, opts)
            if self.rank() == opts.rootRank:
                put(tensor, reduced)
        return self._handle(tensors)

    def _scattered(self, parts: torch.Tensor, shape: Sequence[int], options: Any) -> torch.Tensor:
        """Record the reduce_scatter of `parts`, and return this member's part, of shape `shape`."""
        kind, factor = reductions.reduce_op(options)
        if reductions.is_bitwise(kind):
            return self._reduced(parts, options).reshape(self.size(), -1)[self.rank()].reshape(shape)
        of_dtype = reductions.kind_of(kind, parts.dtype)
        sizes = [*shape, 2] if parts.is_complex() else list(shape)
        x = dense(reductions.before(kind, factor, parts))
        scattered = self._record(OPS.reduce_scatter, x, of_dtype, sizes)
        return reductions.after(kind, scattered, self.size())

    @collective
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        self._check_parts(input, output, "input")
        put(output, self._scattered(input, output.shape, opts))
        return self._handle([output])

    _reduce_scatter_base = reduce_scatter_single  # pyright: ignore[reportAssignmentType]

    @collective
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, input in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, input, opts)
        return self._handle(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # pyright: ignore[reportAssignmentType]

    @collective
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, slots in zip(outputs, inputs, strict=True):
            if len({slot.shape for slot in slots}) == 1:
                put(output, self._scattered(torch.stack(list(slots)), output.shape, opts))
            else:  # the members' parts have different shapes
                reduced = [self._reduced(slot, opts) for slot in slots]
                put(output, reduced[self.rank()])
        return self._handle(outputs)

    # -- copies

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the all_gather of a tensor: shape [n, ...], by member; complex numbers as pairs of reals."""
        return self._record(OPS.all_gather, dense(tensor))

    def _sent(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Record the broadcast of a tensor from member `root`."""
        return self._record(OPS.broadcast, dense(tensor), root)

    @collective
    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        root = 0 if opts is None else opts.rootRank
        for tensor in tensors:
            put(tensor, self._sent(tensor, root))
        return self._handle(tensors)

    @collective
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        self._check_parts(output, input, "output")
        put(output, self._gathered(input))
        return self._handle([output])

    _allgather_base = all_gather_single

    @collective
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, input in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, input, opts)
        return self._handle(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # pyright: ignore[reportAssignmentType]

    @collective
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather the tensors of all members.

        The future of its handle has the parts stacked in one tensor per input, as NCCL's has: torch's quantization
        hooks rely on it.
        """
        results: list[Any] = []
        for slots, input in zip(outputs, inputs, strict=True):
            self._check_count("all_gather", slots)
            if len({slot.shape for slot in slots}) == 1:
                if slots[0].numel() != input.numel():
                    raise ValueError(
                        f"all_gather expected tensors of the input's shape {list(input.shape)}; they have "
                        f"{list(slots[0].shape)}"
                    )
                gathered = self._gathered(input)
                for slot, row in zip(slots, gathered, strict=True):
                    put(slot, row)
                results.append(torch.view_as_complex(gathered) if input.is_complex() else gathered)
            else:  # the members' parts have different shapes
                for root, slot in enumerate(slots):
                    put(slot, self._sent(input if root == self.rank() else slot, root))
                results.append(list(slots))
        return self._handle(results)

    @collective
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for i, input in enumerate(inputs):
            self.allgather([[slots[i] for slots in outputs]], [input], opts)
        return self._handle([slot for slots in outputs for slot in slots])

    @collective
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather the tensors on all members; only the root writes them to `outputs`."""
        for slots in outputs if self.rank() == opts.rootRank else ():
            self._check_count("gather", slots)
        gathered = self._gathered(inputs[0])
        for slots in outputs if self.rank() == opts.rootRank else ():
            for slot, row in zip(slots, gathered, strict=True):
                put(slot, row)
        return self._handle([slot for slots in outputs for slot in slots])

    @collective
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        output, root = outputs[0], opts.rootRank
        if self.rank() == root:
            self._check_count("scatter", inputs[0])
            stacked = torch.stack(list(inputs[0]))
        else:
            stacked = output.new_zeros((self.size(), *output.shape))
        size = [*output.shape, 2] if output.is_complex() else list(output.shape)
        put(output, self._record(OPS.scatter, dense(stacked), root, size))
        return self._handle(outputs)

    @collective
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        if output_sizes or input_sizes:  # each member knows only its own split sizes
            return self.exchange(output, input, output_sizes, input_sizes)
        if input.shape[0] % self.size() or output.numel() != input.numel():
            raise ValueError(
                f"all_to_all_single without split sizes needs equal parts for {self.size()} members; the input has "
                f"shape {list(input.shape)}, the output {list(output.shape)}"
            )
        put(output, self._record(OPS.all_to_all, dense(input)))
        return self._handle([output])

    alltoall_base = all_to_all_single  # pyright: ignore[reportAssignmentType]

    @collective
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self.exchange_lists(outputs, inputs)

    def _check_count(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        if len(parts) != self.size():
            raise ValueError(f"{name} expected a list of {self.size()} tensors, one for each member; got {len(parts)}")

    def _check_parts(self, whole: torch.Tensor, part: torch.Tensor, name: str) -> None:
        if whole.dtype != part.dtype:
            raise TypeError(f"input and output must have one dtype; they have {part.dtype} and {whole.dtype}")
        if whole.numel() != part.numel() * self.size():
            raise ValueError(
                f"{name} must have {self.size()} times as many elements as the other tensor; they have shapes "
                f"{list(whole.shape)} and {list(part.shape)}"
            )

    # -- the interface that torch expects of a process group

    def getBackendName(self) -> str:
        return "tpu"

    @property
    def group_name(self) -> Any:
        return self.named

    def _set_group_name(self, name: Any) -> None:
        self.named = name

    def getGroupName(self) -> str:
        return self.named

    @property
    def group_desc(self) -> str:
        return self.described

    def _set_group_desc(self, desc: str) -> None:
        self.described = desc

    def getGroupDesc(self) -> str:
        return self.described

    @property
    def supports_coalescing(self) -> bool:
        return True

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the control plane numbers the collectives."""

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("tpu"), torch.device("cpu")]

    def abort(self) -> None:
        """Do nothing: a running collective cannot be stopped from here."""


class TpuGroup(HostTensors, PointToPoint, DeviceGroup):
    """A process group of processes that exist. `host` is the gloo group of the same members."""

    def __init__(self, world: World, name: str, members: Sequence[int], rank: int, host: Any):
        DeviceGroup.__init__(self, name, members, rank)
        self.world = world
        self.host = host
        self.works: list[Any] | None = None

    def _record(self, op: Any, *arguments: Any) -> torch.Tensor:
        entry = self.world.note(self.key)  # before recording: strict mode launches the collective while it is recorded
        try:
            return op(*arguments, self.key, self.members)
        except BaseException:
            self.world.flight.withdraw(entry)
            raise

    def _handle(self, result: Any) -> Recorded:
        """Return the handle of the collective that was recorded last."""
        return Recorded(result, self.world.last(self.key), self.world)

    def _get_sequence_number_for_group(self) -> int:
        return self.world.posted(self.key)

    def _get_backend(self, device: torch.device) -> Any:
        return self.host._get_backend(device) if torch.device(device).type == "cpu" else self

    def set_timeout(self, timeout: Any) -> None:
        self.world.seconds[self.key] = timeout.total_seconds()

    def shutdown(self) -> None:
        finish()
