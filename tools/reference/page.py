"""The page: families, ops, and for each op its class, Builder method, operands, attributes, results and rules."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Attribute
from xdsl.irdl import OptionalDef, PropertyDef, VarOperandDef, VarResultDef
from xdsl.printer import Printer

from lazytpu.ir import attention, base, binary, unary
from lazytpu.ir.assembly import print_value
from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.control import RegionOp
from lazytpu.ir.dialect import FAMILIES, OPS
from lazytpu.ir.literals import to_text
from lazytpu.ir.pointwise import BinaryOp, UnaryOp
from tools.reference.verifier import dtypes, rules

ROOT = Path(__file__).resolve().parents[2]

HEAD = Path(__file__).with_name("head.md").read_text()

KINDS = {
    id(base.INT): "integer",
    id(base.FLAG): "truth value",
    id(base.INTS): "integers",
    id(base.SIZE_LIST): "sizes",
    id(base.WORD): "word",
    id(attention.SCALE): "number",
}
"Constraints of properties, in words."


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(family, FAMILIES)])


def family(module: ModuleType) -> str:
    """Return the section of the ops that one module defines."""
    ops = [op for op in OPS.values() if vars(module).get(op.__name__) is op]
    title = module.__name__.rpartition(".")[2].capitalize()
    sections = [f"## {title}\n", f"{inspect.cleandoc(module.__doc__ or '')}\n"]
    for heading, kind, source in (("One operand", UnaryOp, unary), ("Two operands", BinaryOp, binary)):
        if rows := [row(op) for op in ops if issubclass(op, kind)]:
            sections += [f"### {heading}\n", f"{plain(source.__doc__)} In {link(source)}.\n", TABLE, *rows, ""]
    sections += [section(op) for op in ops if not issubclass(op, UnaryOp | BinaryOp)]
    return "\n".join(sections)


MANY = " (any number)"
TABLE = "| op | class | built by | operands | meaning |\n|---|---|---|---|---|"


def row(op: type[UnaryOp | BinaryOp]) -> str:
    """An elementwise op in its table."""
    name = mnemonic(op)
    call = f'b.unary("{name}", x)' if issubclass(op, UnaryOp) else f'b.binary("{name}", x, y)'
    built = ", ".join([f"`{call}`", *(f"`b.{short}`" for short in shorthands().get(name, ()))])
    meaning = plain(op.__doc__).replace("|", "\\|")
    return f"| `{name}` | `{op.__name__}` | {built} | {dtypes(op.DOMAIN)} | {meaning} |"


def section(op: type[TensorOp]) -> str:
    """An op by itself."""
    definition = op.get_irdl_definition()
    operands = [f"`{name}`{MANY if isinstance(kind, VarOperandDef) else ''}" for name, kind in definition.operands]
    results = [f"`{name}`{MANY if isinstance(kind, VarResultDef) else ''}" for name, kind in definition.results]
    attributes = [attribute(name, kind) for name, kind in definition.properties.items()]
    lines = [f"### `{mnemonic(op)}`\n", f"{plain(op.__doc__)}\n"]
    lines.append(f"- class: `{op.__name__}` in {link(inspect.getmodule(op))}")
    lines += [f"- built by: `{call}`" for call in methods().get(op, ())]
    for what, items in (("operands", operands), ("attributes", attributes), ("results", results)):
        lines.append(f"- {what}: {', '.join(items) or 'none'}")
    if issubclass(op, RegionOp):
        lines.append(f"- regions: {', '.join(f'`{word}`' for word in op.KEYWORDS)}")
    if refused := rules(op):
        lines += ["- verifier:", *(f"    - {rule}" for rule in refused)]
    return "\n".join([*lines, ""])


def attribute(name: str, definition: PropertyDef) -> str:
    """A property: its name, kind and default."""
    kind = KINDS.get(id(definition.constr), "attribute")
    optional = definition.default_value is not None and not isinstance(definition, OptionalDef)
    return f"`{name}` ({kind}{f', default `{as_text(definition.default_value)}`' if optional else ''})"


def as_text(value: Attribute | None) -> str:
    """A default as modules print it."""
    assert value is not None
    if isinstance(value, FloatAttr):
        return to_text(value)
    out = StringIO()
    print_value(value, Printer(out))
    return out.getvalue()


def mnemonic(op: type[TensorOp]) -> str:
    return op.name.removeprefix("lazytpu.")


def link(module: ModuleType | None) -> str:
    assert module is not None and module.__file__ is not None
    path = Path(module.__file__).relative_to(ROOT)
    return f"[`{path}`](../{path})"


def plain(docstring: str | None) -> str:
    """Return the first paragraph of a docstring, on one line."""
    text = inspect.cleandoc(docstring or "").partition("\n\n")[0]
    return " ".join(text.split())


@cache
def shorthands() -> dict[str, list[str]]:
    """The Builder's methods that only name an elementwise op, such as b.add(x, y), by that op."""
    names: dict[str, list[str]] = {}
    for name, function in inspect.getmembers(Builder, inspect.isfunction):
        match body(function):
            case [ast.Return(value=ast.Call(func=ast.Attribute(attr="unary" | "binary"), args=[op, *rest]))]:
                names.setdefault(ast.literal_eval(op), []).append(f"{name}({', '.join(map(ast.unparse, rest))})")
            case _:
                pass
    return names


@cache
def methods() -> dict[type[TensorOp], list[str]]:
    """Return the Builder's methods for each op, with their parameters."""
    calls: dict[type[TensorOp], list[str]] = {}
    classes = {op.__name__: op for op in OPS.values()}
    for name, function in inspect.getmembers(Builder, inspect.isfunction):
        for class_name in sorted(named_in(function) & classes.keys()):
            calls.setdefault(classes[class_name], []).append(f"b.{name}{parameters(function)}")
    return calls


def named_in(function: Any, read: set[Any] | None = None) -> set[str]:
    """Return the names in a function, and in the functions of `lazytpu.ir.building` that it calls."""
    read = {function} if read is None else read | {function}
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for statement in body(function)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    called = [function.__globals__.get(name) for name in sorted(names)]
    building = [f for f in called if inspect.isfunction(f) and f.__module__.startswith("lazytpu.ir.building.")]
    return names.union(*(named_in(f, read) for f in building if f not in read))


def parameters(function: object) -> str:
    """A method's parameters without types and self: "(x, dim, descending=False)"."""
    signature = inspect.signature(function)  # pyright: ignore[reportArgumentType]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in list(signature.parameters.values())[1:]]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


@cache
def body(function: object) -> list[ast.stmt]:
    """The statements of a function."""
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body  # pyright: ignore[reportArgumentType]
    return parsed.body if isinstance(parsed, ast.FunctionDef) else []
