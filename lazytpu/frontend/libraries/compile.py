"""`torch.compile` on the device: a captured graph runs through the recorder, op by op, like eager code.

The default backend, inductor, generates C++ and Triton, which cannot reach the device. XLA compiles whole steps here
anyway, so a graph that touches the device is returned as it was captured: results, gradients and programs are those of
the same code without `torch.compile`. Graphs elsewhere go to inductor as before. Nothing here imports dynamo.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakSet

import torch

from lazytpu.frontend import activation
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.recording import names, step_ends


def touches_device(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether an input, a constant or a result of the captured graph is on tpu."""
    held = [*inputs, *graph.parameters(), *graph.buffers()]
    for node in graph.graph.nodes:
        held.extend((node.meta.get("example_value"), node.meta.get("val"), node.kwargs.get("device")))
    return any(_is_on_device(value) for value in held)


def _is_on_device(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_on_device(item) for item in value)
    if isinstance(value, torch.Tensor):
        value = value.device
    elif isinstance(value, str):
        return value.partition(":")[0] == "tpu"
    return isinstance(value, torch.device) and value.type == "tpu"


def as_captured(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The dynamo backend "tpu": the captured graph itself, whose ops are recorded as it runs."""
    return graph.forward


def _routed(compile: Callable[..., Any]) -> Callable[..., Any]:
    """`compile(graph, inputs, …)` for graphs that do not touch the device."""

    def route(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, torch.fx.GraphModule) and touches_device(graph, inputs):
            return as_captured(graph, inputs)
        return compile(graph, inputs, *args, **kwargs)

    return route


def _wrap_inductor(module: ModuleType) -> None:
    setattr(module, private.COMPILE_FX, _routed(getattr(module, private.COMPILE_FX)))


def _register_backend(module: ModuleType) -> None:
    """`torch.compile(backend="tpu")`, which transformers asks for on a device of this name."""
    module.register_backend(as_captured, name="tpu")


def _describe_device(module: Any) -> None:
    """torch describes a TPU to dynamo as it knows one, without float64 and complex numbers."""

    class Interface(module.TpuInterface):
        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return dtype in activation.device().dtypes()

    module.TpuInterface = Interface


def _skip_lazytpu(module: Any) -> None:
    """Dynamo calls functions of lazytpu (mark_step and the like) without tracing them, except the hooks that torch
    calls for every module and optimizer, which would break a graph at each call."""
    module.add("lazytpu")
    for function in list(_opaque):
        _allow(module, function)
    for hook in (names.note_module, names.note_optimizer, step_ends.note_end):
        module.manual_torch_name_rule_map[f"{hook.__module__}.{hook.__name__}"] = module.UserFunctionVariable


_opaque: WeakSet[Any] = WeakSet()
"Callables that dynamo does not look into."


def make_opaque(function: Any) -> None:
    """Let dynamo put calls of a function into its graphs as they are. Ops that it records while a graph is traced
    further are in that graph; arguments and results may be tensors, settings, and tuples, lists and dicts of them."""
    _opaque.add(function)
    rules = sys.modules.get(private.DYNAMO_RULES)
    if rules is not None:
        _allow(rules, function)


def _allow(rules: Any, function: Any) -> None:
    ids = (rules._allowed_callable_ids, rules._nonstrict_trace_callable_ids)
    for known in ids:
        known.add(id(function))
    weakref.finalize(function, lambda number: [known.remove(number) for known in ids], id(function))


def install() -> None:
    """Route graphs of the device away from inductor, when dynamo or inductor is loaded."""
    inductor: Any = private.InductorBackend

    def call(self: Any, graph: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
        if touches_device(graph, inputs):  # decided here, inductor is not even imported
            return as_captured(graph, inputs)
        return native(self, graph, inputs, **kwargs)

    native = inductor.__call__
    inductor.__call__ = call
    when_imported(private.INDUCTOR, _wrap_inductor)
    when_imported(private.DYNAMO_BACKENDS, _register_backend)
    when_imported(private.DYNAMO_INTERFACES, _describe_device)
    when_imported(private.DYNAMO_RULES, _skip_lazytpu)
