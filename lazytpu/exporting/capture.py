"""The graph to export: an ExportedProgram with concrete sizes, from a module or from a program with symbolic sizes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from lazytpu.frontend.lines import SourceLine
from lazytpu.frontend.torch_private import HigherOrderOperator

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def captured(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """Return the ExportedProgram of a module called with these arguments, or `program` itself, specialized to the sizes
    of the arguments if there are any.

    Raises TypeError for anything else, ValueError for a program whose sizes vary or depend on data, and the errors of
    `torch.export.export`.
    """
    if isinstance(program, ExportedProgram):
        if args or kwargs:
            program = _specialized(program, args, kwargs)
    elif isinstance(program, nn.Module):
        program = torch.export.export(program, tuple(args), dict(kwargs))
    else:
        hint = "; wrap the function in an nn.Module whose forward() calls it" if callable(program) else ""
        raise TypeError(
            f"lazytpu.export takes an nn.Module and example arguments, or a torch.export.ExportedProgram, "
            f"not {type(program).__name__}{hint}"
        )
    _check_sizes(program)
    _check_layouts(program)
    if any(isinstance(node.target, HigherOrderOperator) for node in program.graph.nodes):
        with quiet():
            program = program.run_decompositions({})  # expands autocast and no_grad, and functionalizes the graph
    return program


def _specialized(program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    try:
        return torch.export.export(program.module(), tuple(args), dict(kwargs))
    except AssertionError as error:  # raised by the program's guards on sizes
        guard = str(error).partition("\n")[0].removeprefix("Guard failed: ")
        raise ValueError(
            f"these arguments are not among those that the ExportedProgram was made for, which needs {guard}. Give "
            "others, or make it again with dynamic_shapes= that allow them"
        ) from None


def _check_sizes(program: ExportedProgram) -> None:
    """Raise ValueError for sizes that vary, naming the dims, and for sizes that depend on data, naming the op."""
    dims: list[str] = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else []
        varying = {i: size for i, size in enumerate(sizes) if isinstance(size, torch.SymInt)}
        if node.op == "placeholder":
            dims += [f"dimension {i} of '{node.name}' ({size})" for i, size in varying.items()]
            if symbolic:
                dims.append(f"'{node.name}' ({value})")
        elif (varying or symbolic) and not dims:
            subject = f"the size of its result ({list(sizes)})" if varying else "its result"
            raise ValueError(
                f"{node.target}{at(node)}: {subject} depends on the values of tensors, and a program of StableHLO has "
                "fixed sizes and reads no value while it runs. Rewrite it with a fixed size: torch.where or a mask "
                "instead of nonzero, unique or boolean indexing, a tensor instead of .item()"
            )
    if dims:
        raise ValueError(
            f"lazytpu.export needs concrete sizes, but {' and '.join(dims)} may vary in this ExportedProgram. Give "
            "example arguments of the size you want, lazytpu.export(program, args, kwargs), or leave out "
            "dynamic_shapes= when you export it"
        )


def _check_layouts(program: ExportedProgram) -> None:
    """Raise NotImplementedError for sparse arguments and results."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    nodes += program.graph.output_node().all_input_nodes
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise NotImplementedError(
                f"'{node.name}'{at(node)} is {value.layout}: arguments and results of exported programs are dense. "
                "Take or return its parts, such as indices() and values()"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warning of torch about its own copies of tree specs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        yield


def line_of(node: fx.Node) -> SourceLine | None:
    """Return the innermost source line outside torch for a node."""
    line: SourceLine | None = None
    for match in _FRAME.finditer(node.meta.get("stack_trace") or ""):
        if f"{torch.__path__[0]}/" not in match["file"] and not match["file"].startswith("<"):
            line = SourceLine(match["file"], int(match["line"]), match["function"])
    return line


def at(node: fx.Node) -> str:
    """Return ` at model.py:12`, or nothing if the line is unknown."""
    line = line_of(node)
    return "" if line is None else f" at {line}"
