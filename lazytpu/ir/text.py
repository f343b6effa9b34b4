"""Printing and parsing of modules."""

from __future__ import annotations

import io
import re

from xdsl.context import Context
from xdsl.dialects.builtin import UNKNOWN_LOC, Builtin, ModuleOp, StringAttr
from xdsl.dialects.func import Func, FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.dominance import verify_order
from lazytpu.ir.types import text_of


def context() -> Context:
    """An xDSL context with the dialects that a module may use: builtin, func, lazytpu."""
    ctx = Context()
    for dialect in (Builtin, Func, LAZYTPU):
        ctx.load_dialect(dialect)
    return ctx


def print_module(module: ModuleOp) -> str:
    """The text of a module: one op per line, with known source lines. `parse_module` reads it back to an equal module,
    which prints as the same text. Arguments with a `lazytpu.name` are printed under that name."""
    for op in module.ops:
        if isinstance(op, FuncOp):
            _name_arguments(op)
    stream = io.StringIO()
    printer = _Printer(stream)
    printer.print_op(module)
    printer.print_metadata([LAZYTPU])  # the bodies of custom kernels
    return stream.getvalue() + "\n"


def parse_module(text: str, name: str = "<module>") -> ModuleOp:
    """Parse a module. Errors refer to the text by `name`, such as a file name.

    Raises xDSL's ParseError, which shows the line, for malformed text, and VerifyException when an op uses a value that
    is defined after it.
    """
    module = Parser(context(), text, name).parse_module()
    verify_order(module)
    return module


class _Printer(Printer):
    """Prints known locations only; xDSL prints all or none. The text of a type is made once."""

    def print_op(self, op: Operation) -> None:
        outer = self.print_debuginfo
        blocks = [block for region in op.regions for block in region.blocks]
        arguments = any(argument.location != UNKNOWN_LOC for block in blocks for argument in block.args)
        self.print_debuginfo = arguments or op.location != UNKNOWN_LOC
        super().print_op(op)
        self.print_debuginfo = outer

    def print_attribute(self, attribute: Attribute) -> None:
        text = text_of(attribute)
        if text is None:
            super().print_attribute(attribute)
        else:
            self.print_string(text)

    def print_string_literal(self, string: str) -> None:
        # xDSL escapes the bytes of "é", but parses such escapes as a bytes literal, which is not valid as a file name.
        text = re.sub(r'[\x00-\x1f\x7f"]', lambda match: f"\\{ord(match[0]):02X}", string.replace("\\", "\\\\"))
        self.print_string(f'"{text}"')


def hint(name: str) -> str | None:
    """A name as a valid name hint, printed after `%`: "layers.0.weight" becomes `layers_0_weight`, and "input 3"
    `input3`, because the parser takes a trailing underscore and number for a counter. None when nothing is left."""
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
