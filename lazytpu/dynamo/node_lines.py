"""The user's source line of an op in a captured graph, from the stack that Dynamo stored when it traced the op
(R10)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from torch import fx

from lazytpu.frontend.lines import SourceLine, is_library

_ROOT = re.compile(r"^[LG]\['[^']*'\]")
_ITEM = re.compile(r"""\[['"]?([^\]'"]*)['"]?\]""")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


def line_of(meta: dict[str, Any], backward: bool) -> SourceLine | None:
    """Return the innermost frame outside torch and lazytpu of a node's stack, from its `meta`; None if there is none.

    An op of a backward graph has the stack of its forward op.
    """
    stack = meta.get("stack_trace")
    if stack is None:
        return None
    line = _innermost(stack, backward or meta.get("partitioner_tag") == "is_backward")
    calls = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    return replace(line, module=_module(*list(calls.values())[-1])) if line is not None and calls else line


def _module(expression: str, kind: Any) -> str:
    """Return the path of a module from Dynamo's expression for it, such as `L['self'].blocks.2.attn`; for the outermost
    module its class."""
    path = _ITEM.sub(r".\1", _ROOT.sub("", expression).replace("._modules", "")).replace("._orig_mod", "")
    return path.lstrip(".") or (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


@lru_cache(maxsize=4096)
def _innermost(stack: str, backward: bool) -> SourceLine | None:
    return next((_line(frame, backward) for frame in reversed(_frames(stack))), None)


def _frames(stack: str) -> list[re.Match[str]]:
    """Return the frames outside torch and lazytpu, outermost first."""
    return [frame for frame in _FRAME.finditer(stack) if not is_library(frame["file"])]


def _line(frame: re.Match[str], backward: bool = False) -> SourceLine:
    return SourceLine(frame["file"], int(frame["line"]), frame["function"].strip(), backward)


def function_of(graph: fx.GraphModule) -> SourceLine | None:
    """Return the line in the compiled function that leads to its first op with a stack."""
    for node in graph.graph.nodes:
        frames = _frames(node.meta.get("stack_trace") or "") if node.op != "placeholder" else ()
        if frames:
            return _line(frames[0])
    return None
