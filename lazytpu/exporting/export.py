"""`lazytpu.export(...)`: from a module or an ExportedProgram to an `Exported`."""

from __future__ import annotations

import re
import threading
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
from lazytpu.exporting.recording import RESULTS, WEIGHTS, Made, Recorded, recorded
from lazytpu.exporting.signature import PLAIN, SEED_TENSOR, Constant, Leaf, Signature, Tensor
from lazytpu.exporting.trees import tree_of
from lazytpu.options import options

PLATFORMS = ("cpu", "tpu")
_CAPTURING = threading.Lock()  # torch.export keeps its state in globals


def export(
    program: nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    platforms: str | Sequence[str],
    seed: bool,
    name: str | None,
) -> Exported:
    """See `lazytpu.export`."""
    chosen = _platforms(platforms)
    name = _identifier(name or ("program" if isinstance(program, ExportedProgram) else type(program).__name__))
    with _CAPTURING:
        graph = captured(program, args, kwargs)
    with options(cpu_fallback=False, trace_limit=1 << 30):
        trace = _recorded(graph, chosen)
        imported = Imported(trace)
    written = trace.overwritten.items()
    changed = {node: output for node, output in written if not imported.is_input(output.slot, trace.inputs[node])}
    trace = replace(trace, overwritten=changed)
    seeded = _check_draws(trace, seed)
    nodes = _held(graph, trace)
    signature = _signature(graph, trace, nodes, seeded)
    programs = {platform: _emitted(graph, trace, imported, signature, nodes, name, platform) for platform in chosen}
    return Exported(name, signature, _weights(graph, trace, nodes), programs)


def _platforms(platforms: str | Sequence[str]) -> tuple[str, ...]:
    chosen = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    unknown = [platform for platform in chosen if platform not in PLATFORMS]
    if unknown or not chosen:
        raise ValueError(f"expected platforms among {', '.join(PLATFORMS)}, got {unknown[0] if unknown else '()'!r}")
    return tuple(dict.fromkeys(chosen))


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII) or "program"


def _recorded(graph: ExportedProgram, platforms: Sequence[str]) -> Recorded:
    """Return the trace, recorded for all of the platforms. Raises NotImplementedError for an op that a platform
    lacks."""
    platform = "tpu" if "tpu" in platforms else platforms[0]
    try:
        return recorded(graph, platform)
    except NotImplementedError as error:
        other_platforms = [another for another in PLATFORMS if another != platform]
        for another in other_platforms:
            try:
                recorded(graph, another)
            except NotImplementedError:
                continue
            raise NotImplementedError(f"{error}\nThe {another} has it: export with platforms={another!r}") from error
        raise


def _check_draws(trace: Recorded, seed: bool) -> bool:
    """Return whether the program draws random numbers. Raises ValueError when it does and has no seed."""
    draws = [record for record in trace.records if record.rng is not None]
    if draws and not seed:
        where = f" at {draws[0].line}" if draws[0].line is not None else ""
        raise ValueError(
            f"{draws[0].op}{where} draws random numbers, and an exported program has no generator. Put the module into "
            "eval() mode if it is meant to be, or export it with seed=True: then the seed is an argument"
        )
    return bool(draws)


def _held(graph: ExportedProgram, trace: Recorded) -> dict[str, str]:
    """Return the weights that the program uses, in order: name -> node."""
    specs = [spec for spec in graph.graph_signature.input_specs if spec.kind in WEIGHTS]
    used = [s for s in specs if trace.inputs[s.arg.name] is not None or s.arg.name in trace.overwritten]
    return {str(spec.target): spec.arg.name for spec in sorted(used, key=lambda spec: str(spec.target))}


def _weights(graph: ExportedProgram, trace: Recorded, nodes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return the weights by name. Raises NotImplementedError for a dtype that cannot be saved. Raises ValueError when
    the program overwrites a weight that shares memory with another one: as arguments, they would be separate."""
    tensors_by_name = {**graph.constants, **graph.state_dict}
    weights = {name: tensors_by_name[name] for name in nodes}
    storages: dict[int, str] = {}
    for name, weight in weights.items():
        safetensors.check_dtype(name, weight.dtype)
        first = storages.setdefault(weight.untyped_storage()._cdata, name)
        if first != name and weight.numel() and {nodes[name], nodes[first]} & trace.overwritten.keys():
            raise ValueError(
                f"'{first}' and '{name}' of the module share memory, and the program overwrites one of them: in a "
                "program, whose arguments are apart, the other would keep its old values. Let one be a clone()"
            )
    return weights


def _signature(graph: ExportedProgram, trace: Recorded, nodes: Mapping[str, str], seeded: bool) -> Signature:
    specs = graph.graph_signature
    examples = {node.name: node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"}
    user = [spec for spec in specs.input_specs if spec.kind is InputKind.USER_INPUT]
    results = [spec for spec in specs.output_specs if spec.kind in RESULTS]
    input_tree, input_order = tree_of(graph.call_spec.in_spec)
    output_tree, output_order = tree_of(graph.call_spec.out_spec)
    outputs = [_result(i, results[i].arg, trace.outputs[i]) for i in range(len(results))]
    weights = [_tensor(name, examples[node].dtype, examples[node].shape) for name, node in nodes.items()]
    return Signature(
        weights=tuple(weights),
        inputs=tuple(_input(user[i].arg, examples) for i in input_order),
        input_tree=input_tree,
        outputs=tuple(outputs[i] for i in output_order),
        output_tree=output_tree,
        new_weights=tuple(name for name, node in nodes.items() if node in trace.overwritten),
        new_inputs=tuple(sorted(trace.overwritten.keys() - set(nodes.values()))),
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
    return _constant(argument.name, argument)


def _result(index: int, argument: Any, output: Made | None) -> Leaf:
    name = f"result[{index}]"
    return _constant(name, argument) if output is None else _tensor(name, output.dtype, output.shape)


def _constant(name: str, argument: Any) -> Constant:
    if not isinstance(argument, ConstantArgument) or type(argument.value) not in PLAIN:
        value = getattr(argument, "value", argument)
        raise TypeError(f"'{name}' of the module: expected a tensor, a number, a string or None, got {value!r}")
    return Constant(name, argument.value)


def _emitted(
    graph: ExportedProgram,
    trace: Recorded,
    imported: Imported,
    signature: Signature,
    nodes: Mapping[str, str],
    name: str,
    platform: str,
) -> Emitted:
    weights = [_port(weight, trace.inputs[nodes[weight.name]]) for weight in signature.weights]
    seed = [_port(SEED_TENSOR, None)] if signature.seeded else []
    inputs = [_port(tensor, trace.inputs[tensor.name]) for tensor in signature.tensors]
    outputs = [trace.outputs[i] for i in tree_of(graph.call_spec.out_spec)[1]]
    new = [*(nodes[name] for name in signature.new_weights), *signature.new_inputs]
    slots = [*(made.slot for made in outputs if made is not None), *(trace.overwritten[node].slot for node in new)]
    return imported.emitted(
        [*weights, *seed, *inputs],
        [_port(tensor, slot) for tensor, slot in zip(signature.results, slots, strict=True)],
        seed[0] if seed else None,
        name=name,
        platform=platform,
    )


def _port(tensor: Tensor, slot: int | None) -> Port:
    return Port(tensor.name, dtypes.name(getattr(torch, tensor.dtype)), tensor.shape, slot)
