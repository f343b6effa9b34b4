"""Branches with constant conditions, loops with known trip counts, and region operands."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

T, C = "tensor<4xf32>", "tensor<i32>"
ARGUMENTS = f"%c : tensor<i1>, %x : {T}, %y : {T}"
ENDS = f": (tensor<i1>, {T}, {T}) -> {T}"
TWO = f"""then(%a, %b) {{
          %1 = lazytpu.add %a, %b : {T}
          lazytpu.yield %1 : {T}
        }} else(%a, %b) {{
          %1 = lazytpu.mul %a, %b : {T}
          lazytpu.yield %1 : {T}
        }}"""


@pytest.mark.parametrize(("condition", "chosen"), [("true", "add"), ("false", "mul")])
def test_branch_on_a_constant(condition: str, chosen: str) -> None:
    rewrites(
        "canonicalize",
        ARGUMENTS,
        f"""
        %t = lazytpu.constant {condition} : tensor<i1>
        %0 = lazytpu.if %t, %x, %y {ENDS} {TWO}
        func.return %0 : {T}""",
        f"%0 = lazytpu.{chosen} %x, %y : {T}\nfunc.return %0 : {T}",
    )


def test_branch_on_a_value_stays() -> None:
    keeps("canonicalize,cse,dce", ARGUMENTS, f"%0 = lazytpu.if %c, %x, %y {ENDS} {TWO}\nfunc.return %0 : {T}")


def test_nested_branches_know_the_condition() -> None:
    inner = f"%2 = lazytpu.if %d, %a, %b {ENDS} {TWO}\nlazytpu.yield %2 : {T}"
    rewrites(
        "canonicalize,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.if %c, %x, %y, %c : (tensor<i1>, {T}, {T}, tensor<i1>) -> {T} then(%a, %b, %d) {{
          {inner}
        }} else(%a, %b, %d) {{
          {inner}
        }}
        func.return %0 : {T}""",
        f"%0 = lazytpu.if %c, %x, %y {ENDS} {TWO}\nfunc.return %0 : {T}",
    )


def test_branch_that_only_passes_values_on_is_a_select() -> None:
    rewrites(
        "canonicalize,dce",
        ARGUMENTS,
        f"""
        %0, %1, %2, %3 = lazytpu.if %c, %x, %y : (tensor<i1>, {T}, {T}) -> ({T}, {T}, {T}, {T}) then(%a, %b) {{
          %k = lazytpu.constant 2.0 : {T}
          %4 = lazytpu.exp %a : {T}
          lazytpu.yield %a, %a, %k, %4 : {T}, {T}, {T}, {T}
        }} else(%a, %b) {{
          %k = lazytpu.constant 2.0 : {T}
          lazytpu.yield %b, %a, %k, %b : {T}, {T}, {T}, {T}
        }}
        func.return %0, %1, %2, %3 : {T}, {T}, {T}, {T}""",
        f"""
        %0 = lazytpu.select %c, %x, %y : (tensor<i1>, {T}, {T}) -> {T}
        %k = lazytpu.constant 2.0 : {T}
        %3 = lazytpu.if %c, %x, %y : (tensor<i1>, {T}, {T}) -> {T} then(%a, %b) {{
          %4 = lazytpu.exp %a : {T}
          lazytpu.yield %4 : {T}
        }} else(%a, %b) {{
          lazytpu.yield %b : {T}
        }}
        func.return %0, %x, %k, %3 : {T}, {T}, {T}, {T}""",
    )


def test_duplicate_operands_are_merged_and_constants_cloned() -> None:
    rewrites(
        "canonicalize,dce",
        ARGUMENTS,
        f"""
        %k = lazytpu.constant 1.0 : {T}
        %0 = lazytpu.if %c, %x, %k, %x : (tensor<i1>, {T}, {T}, {T}) -> {T} then(%a, %k_, %b) {{
          %1 = lazytpu.mul %a, %k_ : {T}
          %2 = lazytpu.add %1, %b : {T}
          lazytpu.yield %2 : {T}
        }} else(%a, %k_, %b) {{
          %1 = lazytpu.exp %b : {T}
          lazytpu.yield %1 : {T}
        }}
        func.return %0 : {T}""",
        f"""
        %0 = lazytpu.if %c, %x : (tensor<i1>, {T}) -> {T} then(%a) {{
          %2 = lazytpu.add %a, %a : {T}
          lazytpu.yield %2 : {T}
        }} else(%a) {{
          %1 = lazytpu.exp %a : {T}
          lazytpu.yield %1 : {T}
        }}
        func.return %0 : {T}""",
    )


def loop(start: int, compare: str, step: str, kind: str = C) -> str:
    """Return a loop with this initial counter, which multiplies x by y."""
    return f"""
        %s = lazytpu.constant {start} : {kind}
        %i, %0 = lazytpu.while %s, %x, %y carried = 2 : ({kind}, {T}, {T}) -> ({kind}, {T}) while(%j, %a, %b) {{
          %n = lazytpu.constant 7 : {kind}
          %g = lazytpu.compare {compare} : ({kind}, {kind}) -> tensor<i1>
          lazytpu.yield %g : tensor<i1>
        }} do(%j, %a, %b) {{
          %d = lazytpu.constant {step.split()[1]} : {kind}
          %k = lazytpu.{step.split()[0]} %j, %d : {kind}
          %m = lazytpu.mul %a, %b : {T}
          lazytpu.yield %k, %m : {kind}, {T}
        }}
        func.return %0 : {T}"""


@pytest.mark.parametrize(
    ("start", "compare", "step"),
    [(7, "LT %j, %n", "add 1"), (8, "LE %j, %n", "mul 2"), (7, "NE %n, %j", "add 3"), (0, "GT %j, %n", "add 1")],
)
def test_loop_that_never_runs(start: int, compare: str, step: str) -> None:
    rewrites("canonicalize", ARGUMENTS, loop(start, compare, step), f"func.return %x : {T}")


@pytest.mark.parametrize(
    ("start", "compare", "step"),
    [(6, "LT %j, %n", "add 1"), (0, "GT %n, %j", "add 9"), (8, "GT %j, %n", "sub 1"), (7, "EQ %j, %n", "add 1")],
)
def test_loop_that_runs_once_is_its_body(start: int, compare: str, step: str) -> None:
    once = f"%m = lazytpu.mul %x, %y : {T}\nfunc.return %m : {T}"
    rewrites("canonicalize", ARGUMENTS, loop(start, compare, step), once)


@pytest.mark.parametrize(
    ("start", "compare", "step"),
    [(0, "LT %j, %n", "add 1"), (6, "LT %j, %n", "add -1"), (6, "NE %j, %n", "add 2"), (6, "LE %j, %n", "mul 3")],
)
def test_other_loops_stay(start: int, compare: str, step: str) -> None:
    keeps("canonicalize", ARGUMENTS, loop(start, compare, step))


def test_loop_with_a_false_condition() -> None:
    rewrites(
        "canonicalize",
        ARGUMENTS,
        f"""
        %0 = lazytpu.while %x carried = 1 : ({T}) -> {T} while(%a) {{
          %g = lazytpu.constant false : tensor<i1>
          lazytpu.yield %g : tensor<i1>
        }} do(%a) {{
          %1 = lazytpu.exp %a : {T}
          lazytpu.yield %1 : {T}
        }}
        func.return %0 : {T}""",
        f"func.return %x : {T}",
    )


def test_unchanged_carried_value_is_an_invariant() -> None:
    rewrites(
        "canonicalize,dce",
        ARGUMENTS,
        f"""
        %0, %1 = lazytpu.while %y, %x carried = 2 : ({T}, {T}) -> ({T}, {T}) while(%b, %a) {{
          %s = lazytpu.compare LT %a, %b : ({T}, {T}) -> tensor<4xi1>
          %g = lazytpu.reduce and %s dims = [0] : (tensor<4xi1>) -> tensor<i1>
          lazytpu.yield %g : tensor<i1>
        }} do(%b, %a) {{
          %m = lazytpu.add %a, %b : {T}
          lazytpu.yield %b, %m : {T}, {T}
        }}
        func.return %0, %1 : {T}, {T}""",
        f"""
        %1 = lazytpu.while %x, %y carried = 1 : ({T}, {T}) -> {T} while(%a, %b) {{
          %s = lazytpu.compare LT %a, %b : ({T}, {T}) -> tensor<4xi1>
          %g = lazytpu.reduce and %s dims = [0] : (tensor<4xi1>) -> tensor<i1>
          lazytpu.yield %g : tensor<i1>
        }} do(%a, %b) {{
          %m = lazytpu.add %a, %b : {T}
          lazytpu.yield %m : {T}
        }}
        func.return %y, %1 : {T}, {T}""",
    )
