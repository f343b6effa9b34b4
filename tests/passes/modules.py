"""IR text in, IR text out."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import ModuleOp

from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import check, parse, run_pipeline


def module(arguments: str, body: str) -> ModuleOp:
    """The module of a function @main with these arguments; the types of its results are those of the return."""
    returned = re.search(r"func\.return[^:\n]*(?::(.*))?", body)
    assert returned is not None, "the body has no func.return"
    results = f" -> ({returned[1].strip()})" if returned[1] else ""
    made = parse_module(f"builtin.module {{\nfunc.func @main({arguments}){results} {{\n{body}\n}}\n}}")
    check(made, "the module of the test")
    return made


def rewrites(passes: str, arguments: str, before: str, after: str) -> None:
    """`passes` turn the body `before` into `after`, and then change nothing more."""
    rewritten = module(arguments, before)
    run_pipeline(rewritten, passes=passes, verify=True)
    expected = print_module(module(arguments, after))
    assert print_module(rewritten) == expected
    for each in parse(passes):
        run_pipeline(rewritten, passes=each.name, verify=True)
    assert print_module(rewritten) == expected, "a second run changed the module"


def keeps(passes: str, arguments: str, body: str) -> None:
    """`passes` leave the body as it is."""
    rewrites(passes, arguments, body, body)
