"""Modules as text, and back."""

from __future__ import annotations

import io

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.dialect import LAZYTPU


def context() -> Context:
    """An xDSL context with the dialects that a module may use: builtin, func, lazytpu."""
    made = Context()
    for dialect in (Builtin, Func, LAZYTPU):
        made.load_dialect(dialect)
    return made


def print_module(module: ModuleOp) -> str:
    """The text of a module, with source lines."""
    stream = io.StringIO()
    Printer(stream, print_debuginfo=True).print_op(module)
    return stream.getvalue() + "\n"


def parse_module(text: str) -> ModuleOp:
    """The module that `print_module` printed."""
    return Parser(context(), text).parse_module()
