"""The verifier's refusals, read from source: the checks and the errors of an op's `infer`, and of the functions it
calls."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from lazytpu.ir import base, types
from lazytpu.ir.base import TensorOp

# Sets of dtypes by the names that the page uses.
GROUPS = {
    "integers": types.INTEGERS,
    "signed integers": types.SIGNED,
    "floats": types.FLOATS,
    "complex": types.COMPLEX,
    "8-bit floats": types.FLOATS8,
}
# Their errors concern values of any op: shapes that are not static, properties of the wrong kind.
SHARED = (base.__name__, types.__name__)

Names = Mapping[str, ast.expr]
"""The values of variables: loops over literals, and parameters with a literal argument."""


def rules(op: type[TensorOp]) -> list[str]:
    """Return the rules of one op, in the order of the checks, each once."""
    return list(dict.fromkeys(_of_function(op.infer, op, {}, set())))


def dtypes(names: Collection[str]) -> str:
    """A set of dtypes in words: "integers, floats, i1"."""
    if names == types.DTYPES:
        return "any dtype"
    remaining, words = set(names), list[str]()
    for word, group in GROUPS.items():
        if group <= remaining:
            words.append(word)
            remaining -= group
    return ", ".join([*words, *(f"`{dtype}`" for dtype in sorted(remaining))])


def _of_function(function: Any, op: type[TensorOp], names: Names, read: set[Any]) -> Iterator[str]:
    key = function, *map(ast.unparse, names.values())
    if key not in read:
        read.add(key)
        yield from _Reader(function, op, read).block(_parsed(function).body, names)


@cache
def _parsed(function: Callable[..., Any]) -> ast.FunctionDef:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(parsed, ast.FunctionDef)
    return parsed


def _bound(function: Callable[..., Any], call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call by name, defaults included."""
    parsed = _parsed(function)
    parameters = [a.arg for a in parsed.args.args]
    defaults = dict(zip(reversed(parameters), reversed(parsed.args.defaults), strict=False))
    positional = dict(zip(parameters, call.args, strict=False))
    return {**defaults, **positional, **{k.arg: k.value for k in call.keywords if k.arg is not None}}


class _Reader:
    """Reads the source of one function that `op.infer` calls, directly or not; `read` are the functions read before."""

    def __init__(self, function: Any, op: type[TensorOp], read: set[Any]):
        self.globals: dict[str, Any] = function.__globals__
        self.op = op
        self.read = read

    def block(self, statements: list[ast.stmt], names: Names) -> Iterator[str]:
        for statement in statements:
            match statement:
                case ast.For(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=rows), body=body):
                    for row in rows:
                        assert isinstance(row, ast.Tuple)
                        loop = {t.id: v for t, v in zip(targets, row.elts, strict=True) if isinstance(t, ast.Name)}
                        yield from self.block(body, {**names, **loop})
                case ast.For(iter=source, body=body):
                    yield from self.calls(source, names)
                    yield from self.block(body, names)
                case ast.If(test=test, body=body, orelse=orelse):
                    yield from self.calls(test, names)
                    yield from self.block([*body, *orelse], names)
                case ast.Raise(exc=ast.Call(args=[message])):
                    yield self.text(message, names).partition("; got ")[0]
                case _:
                    yield from self.calls(statement, names)

    def calls(self, node: ast.AST, names: Names) -> Iterator[str]:
        """Yield the rules of all calls inside an expression or statement, inner ones first."""
        for child in ast.iter_child_nodes(node):
            yield from self.calls(child, names)
        match node:
            case ast.Call(func=ast.Name(id="super")):
                return
            case ast.Call(func=ast.Name(id=name)) if name in CHECKS:
                yield CHECKS[name](self, _bound(getattr(base, name), node), names)
            case ast.Call(func=ast.Name(id=name)):
                yield from self.called(self.globals.get(name), node)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield from self.called(inspect.getattr_static(self.op, name, None), None)
            case _:
                return

    def called(self, function: Any, call: ast.Call | None) -> Iterator[str]:
        """The rules of a function of the dialect, or of a property; `call` is how a function is called."""
        if isinstance(function, property):
            function = function.fget
        function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else None
        module = getattr(function, "__module__", "")
        if inspect.isfunction(function) and module.startswith("lazytpu.ir.") and module not in SHARED:
            arguments = {} if call is None else _bound(function, call)
            words = {n: a for n, a in arguments.items() if isinstance(a, ast.Constant) and isinstance(a.value, str)}
            yield from _of_function(function, self.op, words, self.read)

    def text(self, node: ast.expr, names: Names) -> str:
        """Return a message, or part of one, with its constant parts filled in."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(self.text(piece, names) for piece in parts)
            case ast.FormattedValue(value=value):
                return self.text(value, names)
            case ast.Name(id=name) if name in names:
                return self.text(names[name], names)
            case _:
                value = self.value(node)
                return value if isinstance(value, str) else f"`{ast.unparse(node)}`"

    def value(self, node: ast.expr) -> Any:
        """The value of an expression of constants and names of the module; None for any other."""
        try:
            return eval(compile(ast.Expression(node), "<rule>", "eval"), self.globals, {"cls": self.op})
        except (NameError, TypeError, KeyError, AttributeError):
            return None


def _dtype(reader: _Reader, arguments: Mapping[str, ast.expr], names: Names) -> str:
    allowed = reader.value(arguments["allowed"])
    words = dtypes(allowed) if isinstance(allowed, frozenset) else f"one of `{ast.unparse(arguments['allowed'])}`"
    return f"{reader.text(arguments['what'], names)}: {words}"


def _one_of(reader: _Reader, arguments: Mapping[str, ast.expr], names: Names) -> str:
    return f"{reader.text(arguments['what'], names)} is one of {', '.join(reader.value(arguments['allowed']))}"


def _length(reader: _Reader, arguments: Mapping[str, ast.expr], names: Names) -> str:
    return f"{reader.text(arguments['what'], names)}: {reader.text(arguments['length'], names)} numbers"


CHECKS: dict[str, Callable[[_Reader, Mapping[str, ast.expr], Names], str]] = {
    "check_dtype": _dtype,
    "one_of": _one_of,
    "check_length": _length,
    "check_dim": lambda reader, arguments, names: f"0 <= {reader.text(arguments['what'], names)} < rank",
    "check_dims": lambda reader, arguments, names: f"{reader.text(arguments['what'], names)}: distinct dimensions",
    "check_sorted": lambda reader, arguments, names: f"{reader.text(arguments['what'], names)}: ascending",
}
"The checks of base.py, in words."
