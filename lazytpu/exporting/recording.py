"""Recording of a captured graph: it runs once on placeholders of the device, in a rehearsal, without computing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from lazytpu.exporting.capture import at, line_of, quiet
from lazytpu.frontend import tensors
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.tensors import DEVICE
from lazytpu.frontend.torch_private import pytree
from lazytpu.rehearsal.rehearse import Imagined, rehearse_once
from lazytpu.trace.trie import Record
from lazytpu.trace.value import EMPTY, Value, resident, row_major

WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
RESULTS = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
OVERWRITING = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_IGNORED = (torch.ops.aten._assert_tensor_metadata.default,)  # it compares devices; its other checks were done


@dataclass(frozen=True, slots=True)
class Made:
    """A new contiguous tensor of the graph: its slot (None if nothing wrote it), dtype and shape."""

    slot: int | None
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded graph: its records, and their run-time numbers by index. `inputs` maps the nodes of the graph's
    tensors to slots, None for an unread one. `outputs` are the user's results (None for one that is no tensor), and
    `overwritten` the new contents of inputs."""

    records: tuple[Record, ...]
    numbers: dict[int, Any]
    inputs: dict[str, int | None]
    outputs: tuple[Made | None, ...]
    overwritten: dict[str, Made]


def recorded(program: ExportedProgram, platform: str) -> Recorded:
    """Return the trace of a program with concrete sizes, as `platform` would record it.

    Raises the errors of its ops, with their source line, and ValueError when an op reads a value.
    """
    traces: list[Recorded] = []
    generator = torch.get_device_module(DEVICE)
    state = generator.get_rng_state()
    try:
        rehearse_once(lambda: traces.append(_run(program)), platform)
    finally:
        generator.set_rng_state(state)
    return traces[0]


def _run(program: ExportedProgram) -> Recorded:
    recorder = tensors.recorder()
    signature = program.graph_signature
    inputs: dict[str, Value] = {}
    arguments: list[Any] = []
    before: dict[str, tuple[torch.Tensor, Value]] = {}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    with torch.no_grad():
        for spec in signature.input_specs:
            if isinstance(spec.arg, TensorArgument):
                inputs[spec.arg.name], tensor = _placeholder(nodes[spec.arg.name].meta["val"])
                before[spec.arg.name] = tensor, tensors.value_of(tensor)
                arguments.append(tensor)
            else:
                arguments.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else None)
        epoch = recorder.epoch
        runner = _Runner(on_device(program.graph_module))
        results: Sequence[Any] = runner.run(*arguments)
        new = {name: tensor for name, (tensor, value) in before.items() if tensors.value_of(tensor) is not value}
        names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
        user: list[Any] = []
        for spec, result in zip(signature.output_specs, results, strict=True):
            if spec.kind in OVERWRITING and spec.target is not None:
                new[names.get(spec.target, spec.target)] = result
            else:
                user.append(result)
        outputs = [_own(result) if isinstance(result, torch.Tensor) else None for result in user]
        overwritten = {name: _own(tensor) for name, tensor in new.items()}
        return Recorded(
            records=tuple(runner.lined(recorder.state.records())),
            numbers=dict(enumerate(recorder.numbers)),
            inputs={name: _slot(value, epoch) for name, value in inputs.items()},
            outputs=tuple([None if tensor is None else _made(tensor, epoch) for tensor in outputs]),
            overwritten={name: _made(tensor, epoch) for name, tensor in overwritten.items()},
        )


def _slot(value: Value, epoch: int) -> int | None:
    return value.slot if value.epoch == epoch else None


def _made(tensor: torch.Tensor, epoch: int) -> Made:
    return Made(_slot(tensors.value_of(tensor), epoch), tensor.dtype, tuple(tensor.shape))


def _placeholder(example: torch.Tensor) -> tuple[Value, torch.Tensor]:
    """Return a contiguous value for an argument, and the tensor for the graph, with the strides of the capture."""
    shape, stride = tuple(example.shape), tuple(example.stride())
    layout = tensors.layout(example.dtype, shape, row_major(shape))
    value = resident(layout, Imagined(layout, None, False))
    tensor = tensors.wrap(value)
    if stride == tensor.stride() or not tensors.is_dense(shape, stride) or 0 in shape:
        return value, tensor
    return value, tensors.empty(shape, stride, example.dtype).copy_(tensor)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy made by the trace: a clone may share a value that nothing has read."""
    clone = tensor.detach().clone(memory_format=torch.contiguous_format)
    value = tensors.value_of(clone)
    if value.buffer is None or value.buffer is EMPTY or value.epoch == tensors.recorder().epoch:
        return clone
    target = tensors.empty(value.layout.shape, clone.stride(), clone.dtype)
    return kernel(torch.ops.aten.copy_.default).call(target, clone)


class _Runner(fx.Interpreter):
    """Runs a graph and notes the records of each node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False  # `_told` adds more detail
        self._made: list[tuple[int, fx.Node]] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.target in _IGNORED:
            return None
        epoch = tensors.recorder().epoch
        try:
            result = super().run_node(n)
        except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError) as error:
            raise _told(error, n) from error
        finally:
            self._made.append((tensors.recorder().state.depth, n))
        if tensors.recorder().epoch != epoch:
            raise ValueError(
                f"{n.target}{at(n)} reads the value of a tensor while it runs, so this is not one program. Compute "
                "with tensors instead: torch.where in place of a branch"
            )
        return result

    def lined(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with the source lines of their nodes."""
        lined: list[Record] = []
        for depth, node in self._made:
            line = line_of(node)
            lined += [replace(record, line=line) for record in records[len(lined) : depth]]
        return lined + [replace(record, line=None) for record in records[len(lined) :]]


def _told(error: Exception, node: fx.Node) -> Exception:
    """Return the error of an op with the op and its line added, of a class that takes one message."""
    kinds = (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError)
    kind = next(kind for kind in kinds if isinstance(error, kind))
    if isinstance(error.__context__, NotImplementedError):
        error = error.__context__  # the message without the advice on `cpu_fallback`, which does not apply to a program
    return kind(f"cannot export {node.target}{at(node)}: {error}")


def on_device(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a captured graph that creates its tensors on the device, for any device of the capture."""
    with quiet():
        moved = copy.deepcopy(module)
    for graph in moved.modules():
        if isinstance(graph, fx.GraphModule):
            for node in graph.graph.nodes:
                node.args = pytree.tree_map(_moved, node.args)
                node.kwargs = pytree.tree_map(_moved, node.kwargs)
    return moved


def _moved(argument: Any) -> Any:
    return DEVICE if isinstance(argument, torch.device) else argument
