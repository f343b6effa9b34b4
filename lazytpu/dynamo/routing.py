"""Which graphs of `torch.compile` come here: those that touch the device, with the default backend and with "tpu".

The default backend, inductor, generates C++ and Triton, which cannot reach the device. Graphs elsewhere go to inductor
as before. Nothing here imports dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lazytpu.frontend import activation, names
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.device.generators import TpuGenerator
from lazytpu.frontend.libraries import opaque
from lazytpu.frontend.libraries.places import call_when_imported, replace_when_imported
from lazytpu.frontend.ops import transformer
from lazytpu.frontend.recording import step_ends
from lazytpu.frontend.recording.untraced import untraced
from lazytpu.trace.recorder import Recorder


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


def compiled(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The dynamo backend "tpu". `mode` and `options` are those of torch.compile."""
    from lazytpu.dynamo.backend import compile_graph
    from lazytpu.dynamo.modes import tunes

    activation.activate()
    return compile_graph(graph, inputs, tunes(mode, options))


def _routed(compile: Callable[..., Any]) -> Callable[..., Any]:
    """`compile(graph, inputs, …)` for graphs that do not touch the device."""

    def route(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, torch.fx.GraphModule) and touches_device(graph, inputs):
            return compiled(graph, inputs)
        return compile(graph, inputs, *args, **kwargs)

    return route


def _register_backend(register: Any) -> None:
    """`torch.compile(backend="tpu")`, which transformers asks for on a device of this name."""
    for name in ("tpu", "lazytpu"):
        register(compiled, name=name)


def _described(native: Any) -> Any:
    """torch describes a TPU to dynamo as it knows one, without float64 and complex numbers."""

    class Interface(native):
        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return dtype in activation.device().dtypes()

    return Interface


def _skip_lazytpu(skip: Any) -> None:
    """Dynamo calls functions of lazytpu (mark_step and the like) without tracing them, except the hooks that torch
    calls for every module and optimizer, and what stands in for functions of torch: they would break a graph at each
    call. Where they lead to the engine, it does not trace what is called there either."""
    from lazytpu.dynamo.graph import CompiledGraph
    from lazytpu.dynamo.host_part import WithHostPart
    from lazytpu.frontend.recording import kernels

    graphs = CompiledGraph.__call__, WithHostPart.__call__
    for gate in (kernels.kernel, kernels.callable_of, Recorder.cut, Recorder.read, *graphs):
        untraced(gate)
    skip("lazytpu")
    opaque.allow_all()
    rules, traced = private.RULES_BY_NAME.get(), private.TRACED.get()
    encode: Any = transformer.encode
    for hook in (names.note_module, names.note_optimizer, step_ends.note_end, _accept_device, encode):
        name = f"{hook.__globals__['__name__']}.{hook.__code__.co_name}"  # a wrapper bears the names of what it wraps
        rules[name] = traced


def _register_fakes(register: Any) -> None:
    """Fake tensors of the device ask `lazytpu.dynamo.fakes`, which is imported when the first one is computed."""

    def fake(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        from lazytpu.dynamo.fakes import fake_results

        return fake_results(mode, op, args, kwargs)

    register(lambda op: True)(fake)


def _record(op: Any) -> None:
    """Let a branch or loop of torch on the device be recorded by `lazytpu.dynamo.control_flow`."""
    dense = op.py_kernels[private.Key.CompositeExplicitAutograd]

    def implementation(*args: Any, **kwargs: Any) -> Any:
        from lazytpu.dynamo.control_flow import record

        return record(op, dense, args, kwargs)

    op.py_impl(private.Key.PrivateUse1)(implementation)


_refuse_device: Any = None  # torch's own


def _accept_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """In place of what raises in flex_attention for devices that inductor has no kernel for."""
    if query.device.type != "tpu":
        _refuse_device(query, key, value)


def _open_flex_attention(native: Any) -> Any:
    global _refuse_device
    _refuse_device = native
    return _accept_device


def _open_generators(native: Any) -> Any:
    """Generators of the device are for Dynamo what those of the CPU are: objects that break a graph. A subclass of
    theirs would be an operand of the graph, which its fake ops refuse."""

    def is_operand(kind: type) -> bool:
        return not issubclass(kind, TpuGenerator) and native(kind)

    return staticmethod(is_operand)


def install() -> None:
    """Route graphs of the device away from inductor, when dynamo or inductor is loaded."""
    for op in private.CONTROL_FLOW:
        _record(op)
    inductor: Any = private.InductorBackend

    def call(self: Any, graph: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
        if touches_device(graph, inputs):  # decided here, inductor is not even imported
            return compiled(graph, inputs, options=self.config)
        return native(self, graph, inputs, **kwargs)

    native = inductor.__call__
    inductor.__call__ = call
    replace_when_imported(private.INDUCTOR, _routed)
    replace_when_imported(private.TPU_INTERFACE, _described)
    replace_when_imported(private.IS_OPERAND, _open_generators)
    replace_when_imported(private.FLEX_DEVICE, _open_flex_attention)
    call_when_imported(private.REGISTER_BACKEND, _register_backend)
    call_when_imported(private.SKIP_PACKAGE, _skip_lazytpu)
    call_when_imported(private.FAKE_RULE, _register_fakes)
