"""Modules as text, and back."""

from __future__ import annotations

import io
import re

from xdsl.context import Context
from xdsl.dialects.builtin import UNKNOWN_LOC, Builtin, ModuleOp, StringAttr
from xdsl.dialects.func import Func, FuncOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.dominance import verify_order


def context() -> Context:
    """An xDSL context with the dialects that a module may use: builtin, func, lazytpu."""
    made = Context()
    for dialect in (Builtin, Func, LAZYTPU):
        made.load_dialect(dialect)
    return made


def print_module(module: ModuleOp) -> str:
    """The text of a module: one op per line, with the source lines that are known. `parse_module` reads it back to an
    equal module, and that prints as the same text. Arguments with a `lazytpu.name` are called by it."""
    for op in module.ops:
        if isinstance(op, FuncOp):
            _name_arguments(op)
    stream = io.StringIO()
    _Printer(stream).print_op(module)
    return stream.getvalue() + "\n"


def parse_module(text: str, name: str = "<module>") -> ModuleOp:
    """The module of a text. `name` is what errors call the text (a file name).

    Raises xDSL's ParseError, which shows the line, when it cannot be read, and VerifyException when an op uses a value
    that only a later one makes.
    """
    module = Parser(context(), text, name).parse_module()
    verify_order(module)
    return module


class _Printer(Printer):
    """Prints the location of an op when it is known; xDSL prints all or none."""

    def print_op(self, op: Operation) -> None:
        outer = self.print_debuginfo
        blocks = [block for region in op.regions for block in region.blocks]
        arguments = any(argument.location != UNKNOWN_LOC for block in blocks for argument in block.args)
        self.print_debuginfo = arguments or op.location != UNKNOWN_LOC
        super().print_op(op)
        self.print_debuginfo = outer

    def print_string_literal(self, string: str) -> None:
        # xDSL escapes the bytes of "é" and then reads them as bytes, not as a string that may name a file.
        text = re.sub(r'[\x00-\x1f\x7f"]', lambda found: f"\\{ord(found[0]):02X}", string.replace("\\", "\\\\"))
        self.print_string(f'"{text}"')


def hint(name: str) -> str | None:
    """A name as it may stand after `%`: "layers.0.weight" is `layers_0_weight`, "input 3" is `input3` (the parser takes
    a number after an underscore at the end for a counter); None when nothing is left of it."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    word = re.sub(r"(_\d+)+$", lambda end: end[0].replace("_", ""), word)
    return f"_{word}" if word[:1].isdigit() else word or None


def _name_arguments(function: FuncOp) -> None:
    if function.arg_attrs is None or not function.body.blocks:
        return
    for argument, attributes in zip(function.args, function.arg_attrs, strict=True):
        name = attributes.data.get("lazytpu.name")
        if argument.name_hint is None and isinstance(name, StringAttr):
            argument.name_hint = hint(name.data)
