"""Route graphs of `torch.compile` that touch the device to this room, for the default backend and for "tpu".

The default backend, inductor, generates C++ and Triton, which cannot reach the device. It still gets all other graphs.
This module does not import Dynamo.
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
    """Return whether an input, constant or result of the captured graph is on the device."""
    candidates = [*inputs, *graph.parameters(), *graph.buffers()]
    for node in graph.graph.nodes:
        candidates.extend((node.meta.get("example_value"), node.meta.get("val"), node.kwargs.get("device")))
    return any(_is_on_device(value) for value in candidates)


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
    """Compile a graph: the Dynamo backend "tpu". `mode` and `options` are torch.compile's."""
    from lazytpu.dynamo.backend import compile_graph
    from lazytpu.dynamo.modes import tunes

    activation.activate()
    return compile_graph(graph, inputs, tunes(mode, options))


def _routed(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `compile(graph, inputs, ...)`, so that it only gets graphs that do not touch the device."""

    def route(graph: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, torch.fx.GraphModule) and touches_device(graph, inputs):
            return compiled(graph, inputs)
        return compile(graph, inputs, *args, **kwargs)

    return route


def _register_backend(register: Any) -> None:
    """Register `torch.compile(backend="tpu")`; transformers requests the backend named like the device."""
    for name in ("tpu", "lazytpu"):
        register(compiled, name=name)


def _described(native: Any) -> Any:
    """Extend torch's description of a TPU to Dynamo, which lacks float64 and complex numbers."""

    class Interface(native):
        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            return dtype in activation.device().dtypes()

    return Interface


def _skip_lazytpu(skip: Any) -> None:
    """Configure which functions of lazytpu Dynamo traces.

    It calls the public ones (such as mark_step) without tracing them. It traces the hooks that torch calls for every
    module and optimizer, and the replacements of torch functions: each would break a graph at every call. Where these
    lead to the engine, tracing stops.
    """
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
        # From the code object: a wrapper has the attributes of the function that it wraps.
        name = f"{hook.__globals__['__name__']}.{hook.__code__.co_name}"
        rules[name] = traced


def _register_fakes(register: Any) -> None:
    """Let fake tensors of the device use `lazytpu.dynamo.fakes`, which is imported at the first one."""

    def fake(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        from lazytpu.dynamo.fakes import fake_results

        return fake_results(mode, op, args, kwargs)

    register(lambda op: True)(fake)


def _record(op: Any) -> None:
    """Let `lazytpu.dynamo.control_flow` record a branch or loop of torch on the device."""
    dense = op.py_kernels[private.Key.CompositeExplicitAutograd]

    def implementation(*args: Any, **kwargs: Any) -> Any:
        from lazytpu.dynamo.control_flow import record

        return record(op, dense, args, kwargs)

    op.py_impl(private.Key.PrivateUse1)(implementation)


_refuse_device: Any = None  # torch's own function


def _accept_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Replace flex_attention's check, which rejects devices without an inductor kernel."""
    if query.device.type != "tpu":
        _refuse_device(query, key, value)


def _open_flex_attention(native: Any) -> Any:
    global _refuse_device
    _refuse_device = native
    return _accept_device


def _open_generators(native: Any) -> Any:
    """Let Dynamo treat the device's generators like the CPU's: as objects that break a graph.

    Otherwise, as a subclass of torch's Generator, they would become operands of the graph, which fake ops reject.
    """

    def is_operand(kind: type) -> bool:
        return not issubclass(kind, TpuGenerator) and native(kind)

    return staticmethod(is_operand)


def install() -> None:
    """Route the device's graphs away from inductor, once Dynamo or inductor is imported."""
    for op in private.CONTROL_FLOW:
        _record(op)
    inductor: Any = private.InductorBackend

    def call(self: Any, graph: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
        if touches_device(graph, inputs):  # decided here, so inductor is not even imported
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
