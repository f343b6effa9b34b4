"""Passes on branches and loops: a pass works in a region as in a function, and treats an op with regions as any other
op."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from lazytpu.ir.control import RegionOp, WhileOp
from lazytpu.ir.module import options_of
from lazytpu.ir.text import print_module
from lazytpu.passes.layout.assign_layout import LAYOUT
from lazytpu.passes.patterns.trips import trips
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.passes.regions import blocks
from tests.passes.attention.test_fuse_attention import ARGUMENTS as ATTENTION
from tests.passes.attention.test_fuse_attention import FUSE, OUTPUT, RETURN, SCORES, softmax
from tests.passes.layout.test_assign_layout import GRADIENT, W, X, laid
from tests.passes.modules import keeps, parse_main, rewrites

T, S = "tensor<4xf32>", "tensor<f32>"
B = "tensor<i1>"
ARGUMENTS = f"%c : {B}, %x : {T}, %y : {T}"

REDUCED = """
    %0 = lazytpu.all_reduce add %g groups = [[0, 1]] : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = lazytpu.group_rank groups = [[0, 1]] : tensor<i32>
    %2 = lazytpu.constant 4 : tensor<i32>
    %3 = lazytpu.mul %1, %2 : tensor<i32>
    %4 = lazytpu.constant 0 : tensor<i32>
    %5 = lazytpu.dynamic_slice %0, %3, %4 sizes = [4, 4]
         : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
    func.return %5 : tensor<4x4xf32>"""
BODIES = {
    "canonicalize": (
        f"%x : {T}",
        f"%0 = lazytpu.neg %x : {T}\n%1 = lazytpu.neg %0 : {T}\n%2 = lazytpu.exp %1 : {T}\nfunc.return %2 : {T}",
    ),
    "cse": (
        f"%x : {T}",
        f"%0 = lazytpu.exp %x : {T}\n%1 = lazytpu.exp %x : {T}\n%2 = lazytpu.add %0, %1 : {T}\nfunc.return %2 : {T}",
    ),
    "dce": (f"%x : {T}", f"%0 = lazytpu.exp %x : {T}\n%1 = lazytpu.log %x : {T}\nfunc.return %0 : {T}"),
    "constant-folding": (
        f"%x : {T}",
        f"%0 = lazytpu.constant 2.0 : {T}\n%1 = lazytpu.mul %0, %0 : {T}\n%2 = lazytpu.add %1, %x : {T}\n"
        f"func.return %2 : {T}",
    ),
    "keep-compared": (
        f"%x : {T}, %y : {T}",
        f"""
        %0 = lazytpu.add %x, %y : {T}
        %1 = lazytpu.reduce max %0 dims = [0] : ({T}) -> {S}
        %2 = lazytpu.broadcast_in_dim %1 dims = [] : ({S}) -> {T}
        %3 = lazytpu.compare EQ %0, %2 : ({T}, {T}) -> tensor<4xi1>
        func.return %3 : tensor<4xi1>""",
    ),
    "keep-overwritten": (
        f"%x : {T}",
        f"""
        %i = lazytpu.constant 1 : tensor<i32>
        %0 = lazytpu.slice %x starts = [0] limits = [2] strides = [1] : ({T}) -> tensor<2xf32>
        %1 = lazytpu.dynamic_update_slice %x, %0, %i : ({T}, tensor<2xf32>, tensor<i32>) -> {T}
        func.return %1 : {T}""",
    ),
    "bound-fusions{limit=2}": (
        f"%x : {T}, %y : {T}",
        "".join(f"%{i + 1} = lazytpu.add {f'%{i}' if i else '%x'}, %y : {T}\n" for i in range(5))
        + f"func.return %5 : {T}",
    ),
    "pack-scalars{least=2}": (
        f"%x : {S}, %y : {S}, %z : {S}",
        f"%0 = lazytpu.mul %x, %z : {S}\n%1 = lazytpu.mul %y, %z : {S}\nfunc.return %0, %1 : {S}, {S}",
    ),
    "decompose-attention": (
        "%q : tensor<1x2x3x4xf32>, %k : tensor<1x2x5x4xf32>",
        """
        %0 = lazytpu.attention %q, %k, %k precision = highest
             : (tensor<1x2x3x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x2x3x4xf32>
        func.return %0 : tensor<1x2x3x4xf32>""",
    ),
    FUSE: (ATTENTION, SCORES + softmax("%0") + OUTPUT + RETURN),
    "flash-attention{least=0}": (
        "%q : tensor<1x2x128x64xf32>",
        """
        %0 = lazytpu.attention %q, %q, %q causal = true precision = default
             : (tensor<1x2x128x64xf32>, tensor<1x2x128x64xf32>, tensor<1x2x128x64xf32>) -> tensor<1x2x128x64xf32>
        func.return %0 : tensor<1x2x128x64xf32>""",
    ),
    "gather-first": (
        "%x : tensor<3x4xf32>, %r : tensor<3xf32>, %i : tensor<3x1xi32>",
        """
        %0 = lazytpu.broadcast_in_dim %r dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
        %1 = lazytpu.sub %x, %0 : tensor<3x4xf32>
        %2 = lazytpu.gather %1, %i offset_dims = [] collapsed_slice_dims = [1] operand_batching_dims = [0]
             start_indices_batching_dims = [0] start_index_map = [1] index_vector_dim = 1 slice_sizes = [1, 1]
             : (tensor<3x4xf32>, tensor<3x1xi32>) -> tensor<3xf32>
        func.return %2 : tensor<3xf32>""",
    ),
    "split-tokens": (
        "%x : tensor<2x8x4xf32>, %w : tensor<4x4xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<2x8x4xf32>) -> tensor<16x4xf32>
        %1 = lazytpu.dot_general %0, %w lhs_contract = [1] rhs_contract = [0] precision = default
             : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
        %2 = lazytpu.reshape %1 : (tensor<16x4xf32>) -> tensor<2x8x4xf32>
        func.return %2 : tensor<2x8x4xf32>""",
    ),
    "shard-reductions": ("%g : tensor<8x4xf32>", REDUCED),
}
"Pass -> the arguments and body of a function that it changes."


def ops_of(block: Block) -> list[tuple[str, ...]]:
    """Return the kinds of a block's ops and the numbers of their operands; arguments are numbered by first use."""
    numbers: dict[object, int] = {}
    return [
        (
            op.name.replace("func.return", "lazytpu.yield"),
            str(sorted(map(str, op.properties.items()))),
            *(str(numbers.setdefault(value, len(numbers))) for value in (*op.operands, *op.results)),
        )
        for op in block.ops
    ]


def main_of(module: ModuleOp) -> Block:
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    return function.body.block


AGREED = f"%agreed = lazytpu.all_reduce or %c groups = [[0, 1]] : ({B}) -> {B}\n"
"The condition %c, if one of two devices has it."


def in_branch(arguments: str, body: str) -> ModuleOp:
    """Return a module with a branch on a run-time value, with this body on both sides. The devices agree on the value
    if they communicate in the body."""
    names, types = zip(*re.findall(r"(%\w+) : ([^,]+)", arguments + ","), strict=True)
    returned = re.search(r"func\.return[^:]*:(.*)", body)
    assert returned is not None
    results = [kind.strip() for kind in returned[1].split(",")]
    region = f"({', '.join(names)}) {{\n{body.replace('func.return', 'lazytpu.yield')}\n}}"
    heads = [f"%result{'_' * i}" for i in range(len(results))]
    agreed, condition = (AGREED, "%agreed") if "all_reduce" in body else ("", "%c")
    call = f"lazytpu.if {condition}, {', '.join(names)} : ({B}, {', '.join(types)}) -> ({', '.join(results)})"
    return parse_main(
        f"{arguments}, %c : {B}",
        f"{agreed}{', '.join(heads)} = {call} then{region} else{region}\n"
        f"func.return {', '.join(heads)} : {', '.join(results)}",
    )


@pytest.mark.parametrize("passes", BODIES)
def test_each_pass_works_in_a_region(passes: str) -> None:
    arguments, body = BODIES[passes]
    alone, inside = parse_main(arguments, body), in_branch(arguments, body)
    before = ops_of(main_of(alone))
    for module in (alone, inside):
        run_pipeline(module, passes=passes, verify=True)
    expected = ops_of(main_of(alone))
    assert expected != before
    assert options_of(inside) == options_of(alone)
    (_, then, orelse) = blocks(inside)
    assert ops_of(then) == expected
    assert ops_of(orelse) == expected


def test_dead_results_of_a_branch_are_erased_with_their_ops() -> None:
    rewrites(
        "dce",
        ARGUMENTS,
        f"""
        %e = lazytpu.exp %y : {T}
        %0, %1 = lazytpu.if %c, %x, %e : ({B}, {T}, {T}) -> ({T}, {T}) then(%a, %b) {{
          %2 = lazytpu.log %b : {T}
          %3 = lazytpu.neg %a : {T}
          lazytpu.yield %2, %3 : {T}, {T}
        }} else(%a, %b) {{
          lazytpu.yield %b, %a : {T}, {T}
        }}
        func.return %1 : {T}""",
        f"""
        %1 = lazytpu.if %c, %x : ({B}, {T}) -> {T} then(%a) {{
          %3 = lazytpu.neg %a : {T}
          lazytpu.yield %3 : {T}
        }} else(%a) {{
          lazytpu.yield %a : {T}
        }}
        func.return %1 : {T}""",
    )


def test_values_carried_only_for_themselves_are_erased() -> None:
    """%d depends on itself and on %f, which stays because %a depends on it; the condition keeps %i."""
    rewrites(
        "dce",
        f"%n : tensor<i32>, %x : {T}, %y : {T}, %z : {T}",
        f"""
        %o = lazytpu.constant 1 : tensor<i32>
        %e = lazytpu.exp %z : {T}
        %0, %1, %2, %3 = lazytpu.while %o, %e, %x, %y, %n carried = 4
          : (tensor<i32>, {T}, {T}, {T}, tensor<i32>) -> (tensor<i32>, {T}, {T}, {T}) while(%i, %d, %a, %f, %m) {{
          %4 = lazytpu.compare LT %i, %m : (tensor<i32>, tensor<i32>) -> {B}
          lazytpu.yield %4 : {B}
        }} do(%i, %d, %a, %f, %m) {{
          %4 = lazytpu.add %i, %i : tensor<i32>
          %5 = lazytpu.mul %d, %f : {T}
          %6 = lazytpu.add %a, %f : {T}
          %7 = lazytpu.neg %f : {T}
          lazytpu.yield %4, %5, %6, %7 : tensor<i32>, {T}, {T}, {T}
        }}
        func.return %2 : {T}""",
        f"""
        %o = lazytpu.constant 1 : tensor<i32>
        %0, %2, %3 = lazytpu.while %o, %x, %y, %n carried = 3
          : (tensor<i32>, {T}, {T}, tensor<i32>) -> (tensor<i32>, {T}, {T}) while(%i, %a, %f, %m) {{
          %4 = lazytpu.compare LT %i, %m : (tensor<i32>, tensor<i32>) -> {B}
          lazytpu.yield %4 : {B}
        }} do(%i, %a, %f, %m) {{
          %4 = lazytpu.add %i, %i : tensor<i32>
          %6 = lazytpu.add %a, %f : {T}
          %7 = lazytpu.neg %f : {T}
          lazytpu.yield %4, %6, %7 : tensor<i32>, {T}, {T}
        }}
        func.return %2 : {T}""",
    )


def branch(op: str) -> str:
    """Return a branch that applies an op to x if c is true."""
    return f"""lazytpu.if %c, %x : ({B}, {T}) -> {T} then(%a) {{
          %i = lazytpu.{op} %a : {T}
          lazytpu.yield %i : {T}
        }} else(%a) {{
          lazytpu.yield %a : {T}
        }}"""


def test_equal_branches_are_merged() -> None:
    ends = f"%3 = lazytpu.add %0, %1 : {T}\n%4 = lazytpu.add %3, %2 : {T}\nfunc.return %4 : {T}"
    rewrites(
        "cse",
        ARGUMENTS,
        f"%0 = {branch('exp')}\n%1 = {branch('exp')}\n%2 = {branch('log')}\n{ends}",
        f"%0 = {branch('exp')}\n%2 = {branch('log')}\n{ends}".replace("%1", "%0"),
    )


def test_ops_are_not_merged_across_regions() -> None:
    keeps("cse", ARGUMENTS, f"%0 = lazytpu.exp %x : {T}\n%1 = {branch('exp')}\nfunc.return %0, %1 : {T}, {T}")


LOOP = f"""lazytpu.while %w, %x carried = 1 : ({W}, {X}) -> {W} while(%w, %x) {{
          %s = lazytpu.reduce add %w dims = [0, 1, 2, 3] : ({W}) -> {S}
          %l = lazytpu.constant 9.0 : {S}
          %g = lazytpu.compare LT %s, %l : ({S}, {S}) -> {B}
          lazytpu.yield %g : {B}
        }} do(%w, %x) {{
          {GRADIENT.replace("%y", "%x")}
          %u = lazytpu.sub %w, %g : {W}
          lazytpu.yield %u : {W}
        }}"""
UPDATED = f"%x : {X}, %w : {W} {{lazytpu.donate, lazytpu.successor = 0 : i64}}"


def test_weight_updated_in_a_loop_has_the_layout_of_its_gradient() -> None:
    assert laid(parse_main(UPDATED, f"%0 = {LOOP}\nfunc.return %0 : {W}")) == ([None, "auto"], ["auto"])
    constant = LOOP.replace("lazytpu.sub %w, %g", "lazytpu.add %w, %w")
    assert laid(parse_main(UPDATED, f"%0 = {constant}\nfunc.return %0 : {W}")) == ([None, None], [])


def test_donated_argument_is_the_initial_value_of_a_loop() -> None:
    module = parse_main(UPDATED, f"%0 = {LOOP}\nfunc.return %0 : {W}")
    run_pipeline(module, passes="mark-donation", verify=True)
    assert "%w: tensor<4x4x1x1xf32> {lazytpu.alias = 0 : i64}" in print_module(module)
    assert LAYOUT not in print_module(module)


def layers(count: int, last: str = "exp") -> ModuleOp:
    """Return layers of a loop and a branch each; only the last layer may differ."""
    lines: list[str] = []
    for i in range(count):
        name = f"%h{i - 1}" if i else "%x"
        op = last if i == count - 1 else "exp"
        lines.append(f"%p{i} = lazytpu.tanh {name} : {T}")
        lines.append(f"%h{i} = {branch(op).replace('%x', f'%p{i}')}")
    return parse_main(ARGUMENTS, "\n".join(lines) + f"\nfunc.return %h{count - 1} : {T}")


@pytest.mark.parametrize(("last", "functions"), [("exp", 1), ("log", 2)])
def test_equal_clusters_have_equal_regions(last: str, functions: int) -> None:
    module = layers(4, last)
    run_pipeline(module, passes="cluster-fusion{min-ops=2 max-ops=2}", verify=True)
    assert print_module(module).count("func.func private") == functions
    assert print_module(module).count("lazytpu.if") == functions


def test_branch_that_communicates_is_a_cluster_by_itself() -> None:
    reduced = branch("exp").replace("lazytpu.exp %a :", "lazytpu.all_reduce add %a groups = [[0, 1]] :")
    body = f"%0 = lazytpu.exp %x : {T}\n%1 = {reduced}\n%2 = lazytpu.add %0, %1 : {T}\nfunc.return %2 : {T}"
    body = AGREED + body.replace("lazytpu.if %c", "lazytpu.if %agreed")
    module = parse_main(ARGUMENTS, body.replace(f"[[0, 1]] : {T}", f"[[0, 1]] : ({T}) -> {T}"))
    run_pipeline(module, passes="cluster-fusion{min-ops=1}", verify=True)
    ops_by_function = [[op.name for op in f.body.block.ops][:-1] for f in module.ops if isinstance(f, FuncOp)][1:]
    assert ["lazytpu.if"] in ops_by_function


def counted(start: str, direction: str, step: str, dtype: str = "i32", limit: str = "10") -> WhileOp:
    kind = f"tensor<{dtype}>"
    module = parse_main(
        ARGUMENTS,
        f"""
        %s = lazytpu.constant {start} : {kind}
        %l = lazytpu.constant {limit} : {kind}
        %0, %1 = lazytpu.while %s, %x, %l carried = 2 : ({kind}, {T}, {kind}) -> ({kind}, {T}) while(%i, %a, %n) {{
          %g = lazytpu.compare {direction} %i, %n : ({kind}, {kind}) -> {B}
          lazytpu.yield %g : {B}
        }} do(%i, %a, %n) {{
          %d = lazytpu.constant {step} : {kind}
          %k = lazytpu.add %d, %i : {kind}
          %m = lazytpu.neg %a : {T}
          lazytpu.yield %k, %m : {kind}, {T}
        }}
        func.return %1 : {T}""",
    )
    (loop,) = _loops(module)
    return loop


def _loops(module: ModuleOp) -> Iterator[WhileOp]:
    return (op for op in module.walk() if isinstance(op, WhileOp))


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (counted("0", "LT", "1"), 10),
        (counted("0", "LE", "1"), 11),
        (counted("0", "LT", "3"), 4),
        (counted("0", "LE", "5"), 3),
        (counted("0", "NE", "5"), 2),
        (counted("0", "NE", "3"), None),
        (counted("30", "GT", "-3"), 7),
        (counted("30", "GE", "-4"), 6),
        (counted("30", "LT", "1"), 0),
        (counted("0", "LT", "-1"), None),
        (counted("0", "LT", "0"), None),
        (counted("120", "LT", "5", "i8", "126"), None),
        (counted("120", "LT", "5", "ui8", "126"), 2),
        (counted("0", "LT", "1", "f32"), None),
    ],
)
def test_trip_counts(loop: WhileOp, expected: int | None) -> None:
    assert trips(loop) == expected


def test_regions_are_blocks_of_the_module() -> None:
    arguments, body = BODIES["cse"]
    module = in_branch(arguments, body)
    assert [len(list(block.ops)) for block in blocks(module)] == [2, 4, 4]
    assert all(isinstance(op, RegionOp) for op in main_of(module).ops if op.regions)
