"""Tests of passes on IR text."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp

from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import check, parse, run_pipeline


def parse_main(arguments: str, body: str) -> ModuleOp:
    """Return a module of one function, @main, with these arguments and body; its result types are the types of the
    return."""
    returned = re.search(r"func\.return[^:\n]*(?::(.*))?", body)
    assert returned is not None, "the body has no func.return"
    results = f" -> ({returned[1].strip()})" if returned[1] else ""
    module = parse_module(f"builtin.module {{\nfunc.func @main({arguments}){results} {{\n{body}\n}}\n}}")
    check(module, "the module of the test")
    return module


def rewrites(passes: str, arguments: str, before: str, after: str) -> None:
    """Check that `passes` turn the body `before` into `after`, and that a second run changes nothing."""
    rewritten = parse_main(arguments, before)
    run_pipeline(rewritten, passes=passes, verify=True)
    expected = print_module(parse_main(arguments, after))
    assert print_module(rewritten) == expected
    for module_pass in parse(passes):
        run_pipeline(rewritten, passes=module_pass.name, verify=True)
    assert print_module(rewritten) == expected, "a second run changed the module"


def keeps(passes: str, arguments: str, body: str) -> None:
    """Check that `passes` leave the body unchanged."""
    rewrites(passes, arguments, body, body)
