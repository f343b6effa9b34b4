"""`lazytpu.export(...)`: from a module or an ExportedProgram to an `Exported`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

from lazytpu.aten import dtypes
from lazytpu.exporting import safetensors
from lazytpu.exporting.capture import captured
from lazytpu.exporting.emission import Emitted, Imported, Port
from lazytpu.exporting.exported import Exported
from lazytpu.exporting.recording import RESULTS, Made, Recorded, recorded, weights_of
from lazytpu.exporting.signature import PLAIN, SEED_TENSOR, Constant, Leaf, Signature, Tensor
from lazytpu.exporting.trees import tree_of

PLATFORMS = ("cpu", "tpu")


def export(
    program: nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    platforms: str | Sequence[str],
    seed: bool,
    name: str | None,
) -> Exported:
    """What `lazytpu.export` documents."""
    chosen = _platforms(platforms)
    name = _identifier(name or ("program" if isinstance(program, ExportedProgram) else type(program).__name__))
    graph = captured(program, args, kwargs)
    trace = recorded(graph, "tpu" if "tpu" in chosen else chosen[0])
    imported = Imported(trace)
    written = trace.overwritten.items()
    changed = {node: made for node, made in written if not imported.is_input(made.slot, trace.inputs[node])}
    trace = replace(trace, overwritten=changed)
    draws = [record for record in trace.records if record.rng is not None]
    if draws and not seed:
        where = f" at {draws[0].line}" if draws[0].line is not None else ""
        raise ValueError(
            f"{draws[0].op}{where} draws random numbers, and an exported program has no generator. Put the module into "
            "eval() mode if it is meant to be, or export it with seed=True: then the seed is an argument"
        )
    weights = {_names(graph)[node]: weight for node, weight in weights_of(graph).items() if _is_used(trace, node)}
    for weight_name, weight in weights.items():
        safetensors.check_dtype(weight_name, weight.dtype)
    signature = _signature(graph, trace, weights, bool(draws))
    programs = {platform: _emitted(graph, trace, imported, signature, name, platform) for platform in chosen}
    return Exported(name, signature, {tensor.name: weights[tensor.name] for tensor in signature.weights}, programs)


def _platforms(platforms: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    unknown = [platform for platform in chosen if platform not in PLATFORMS]
    if unknown or not chosen:
        raise ValueError(f"expected platforms among {', '.join(PLATFORMS)}, got {unknown[0] if unknown else '()'!r}")
    return tuple(dict.fromkeys(chosen))


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII) or "program"


def _names(graph: ExportedProgram) -> dict[str, str]:
    """The names of weights and arguments by the names of their nodes."""
    return {spec.arg.name: spec.target or spec.arg.name for spec in graph.graph_signature.input_specs}


def _is_used(trace: Recorded, node: str) -> bool:
    return trace.inputs[node] is not None or node in trace.overwritten


def _signature(graph: ExportedProgram, trace: Recorded, weights: Mapping[str, torch.Tensor], seeded: bool) -> Signature:
    names, specs = _names(graph), graph.graph_signature
    user = [spec for spec in specs.input_specs if spec.kind is InputKind.USER_INPUT]
    input_tree, input_order = tree_of(graph.call_spec.in_spec)
    output_tree, output_order = tree_of(graph.call_spec.out_spec)
    examples = {node.name: node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"}
    results = [spec for spec in specs.output_specs if spec.kind in RESULTS]
    given = zip(range(len(results)), results, trace.outputs, strict=True)
    outputs = [_result(i, spec.arg, made) for i, spec, made in given]
    new = sorted(trace.overwritten)
    return Signature(
        weights=tuple(_tensor(name, weights[name].dtype, tuple(weights[name].shape)) for name in sorted(weights)),
        inputs=tuple(_input(user[i].arg, examples) for i in input_order),
        input_tree=input_tree,
        outputs=tuple(outputs[i] for i in output_order),
        output_tree=output_tree,
        new_weights=tuple(sorted(names[node] for node in new if names[node] in weights)),
        new_inputs=tuple(sorted(node for node in new if names[node] not in weights)),
        seeded=seeded,
    )


def _tensor(name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    if dtype in dtypes.FLOATS8:
        raise NotImplementedError(
            f"'{name}' is {dtype}: arguments and results of exported programs cannot be 8-bit floats; convert it in "
            "forward()"
        )
    return Tensor(name, str(dtype).removeprefix("torch."), tuple(shape))


def _input(argument: Any, examples: Mapping[str, Any]) -> Leaf:
    example = examples[argument.name]
    if isinstance(argument, TensorArgument):
        return _tensor(argument.name, example.dtype, example.shape)
    return _constant(f"argument '{argument.name}'", argument)


def _result(index: int, argument: Any, made: Made | None) -> Leaf:
    if made is not None:
        return _tensor(f"result[{index}]", made.dtype, made.shape)
    return _constant(f"result[{index}]", argument)


def _constant(what: str, argument: Any) -> Constant:
    if not isinstance(argument, ConstantArgument) or type(argument.value) not in PLAIN:
        value = getattr(argument, "value", argument)
        raise TypeError(
            f"{what} of the exported module is {type(value).__name__}: expected a tensor, a number, a string or None"
        )
    return Constant(argument.name, argument.value)


def _emitted(
    graph: ExportedProgram, trace: Recorded, imported: Imported, signature: Signature, name: str, platform: str
) -> Emitted:
    nodes = {name: node for node, name in _names(graph).items()}
    weights = [_port(weight, trace.inputs[nodes[weight.name]]) for weight in signature.weights]
    seed = [_port(SEED_TENSOR, None)] if signature.seeded else []
    inputs = [_port(tensor, trace.inputs[tensor.name]) for tensor in signature.tensors]
    given = [trace.outputs[i] for i in tree_of(graph.call_spec.out_spec)[1]]
    new = [nodes[name] for name in signature.new_weights] + list(signature.new_inputs)
    slots = [*(made.slot for made in given if made is not None), *(trace.overwritten[node].slot for node in new)]
    return imported.emitted(
        [*weights, *seed, *inputs],
        [_port(tensor, slot) for tensor, slot in zip(signature.results, slots, strict=True)],
        seed[0] if seed else None,
        name=name,
        platform=platform,
    )


def _port(tensor: Tensor, slot: int | None) -> Port:
    return Port(tensor.name, dtypes.name(getattr(torch, tensor.dtype)), tensor.shape, slot)
