"""Run a captured graph node by node, recording each op at the user's source line at which it was traced.

AOTAutograd wraps the random ops of a checkpointed function: the forward graph returns the generator's state before the
op, and the backward graph runs the op again from that state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.node_lines import line_of
from lazytpu.frontend.device.generators import default_generator
from lazytpu.frontend.lines import replaying
from lazytpu.frontend.torch_private import save_random_state, with_random_state


class GraphRun(fx.Interpreter):
    """One run of a graph. `backward` says whether it is a backward graph."""

    def __init__(self, graph: fx.GraphModule, backward: bool):
        super().__init__(graph)
        self.extra_traceback = False
        self.nodes = graph.graph
        self.inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.backward = backward
        self.broken: RuntimeError | None = None

    def run(self, *args: Any) -> Any:
        """Run the graph as `fx.Interpreter.run` does, without its progress bar.

        An interrupt inside the progress bar would leave tqdm's lock taken, and the next run would wait forever.
        """
        self.arguments, self.env, self.broken = args, {}, None
        self.args_iter = iter(self.nodes.process_inputs(*args))
        result = None
        with replaying() as self.replayed:
            for node in self.nodes.nodes:
                self.env[node] = result = self.run_node(node)
                for last_used in self.user_to_last_uses.get(node, ()):
                    del self.env[last_used]
        if self.broken is not None:
            raise self.broken
        return self.nodes.process_outputs(result)  # of the last node, the output

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function":
            self.replayed.line = line_of(n.meta, self.backward)
        result, expected = super().run_node(n), n.meta.get("val")
        if result is None and isinstance(expected, torch.Tensor):  # an op that only other devices' backward pass needs
            shape, stride = self._sizes(expected.shape), self._sizes(expected.stride())
            return torch.empty_strided(shape, stride, dtype=expected.dtype, device=expected.device)
        return result

    def _sizes(self, sizes: Sequence[int | torch.SymInt]) -> list[int]:
        """Return the values of symbolic sizes in this run."""
        if all(type(size) is int for size in sizes):
            return [int(size) for size in sizes]
        bindings: dict[Any, int] = {}
        for node, argument in zip(self.inputs, self.arguments, strict=True):
            value = node.meta.get("val")
            is_tensor = isinstance(value, torch.Tensor)
            pairs = zip(value.shape, argument.shape, strict=True) if is_tensor else [(value, argument)]
            bindings.update((s.node.expr, int(number)) for s, number in pairs if isinstance(s, torch.SymInt))
        return [int(s.node.expr.xreplace(bindings)) if isinstance(s, torch.SymInt) else s for s in sizes]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is save_random_state:
            op, *arguments = args
            return self.save_state(), op(*arguments, **kwargs)
        if target is with_random_state:
            state, op, *arguments = args
            return self.in_state(state, op, arguments, kwargs)
        if target is torch.ops.aten._assert_scalar.default:
            return self._assert(target, args)
        return super().call_function(target, args, kwargs)

    def _assert(self, op: Any, args: tuple[Any, ...]) -> None:
        """Check an assertion on a size, but delay its error: the op that needs the size raises eager code's own
        error."""
        try:
            op(*args)
        except RuntimeError as error:
            self.broken = self.broken or error

    def save_state(self) -> Any:
        """Return the state of the device's generator, for `in_state`."""
        return default_generator.get_state()

    def in_state(self, state: Any, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run `op` with the generator in an earlier state."""
        now = default_generator.get_state()
        default_generator.set_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            default_generator.set_state(now)


def random_states(graph: fx.GraphModule) -> frozenset[int]:
    """Return the indices of arguments that are generator states: CPU tensors that are no op's operand."""
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    states = {n.args[0] for n in graph.graph.nodes if n.target is with_random_state}
    return frozenset(i for i, n in enumerate(placeholders) if n in states)
