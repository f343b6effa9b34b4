"""Clusters become functions, equal clusters the same function, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.passes.clusters.cluster_fusion import check_calls, check_partition
from lazytpu.passes.clusters.partition import Partition, partition
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla.evaluate import evaluate
from tests.passes.modules import keeps, parse_main
from tests.passes.programs import inputs, programs
from tests.passes.test_semantics import assert_same_bits

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
SMALL = "cluster-fusion{min-ops=2}"
MATRIX, VECTOR = "tensor<4x4xf32>", "tensor<4xf32>"


def clustered(arguments: str, body: str, passes: str = SMALL) -> ModuleOp:
    """Return the module after the pass; its text round-trips."""
    module = parse_main(arguments, body)
    run_pipeline(module, passes=passes, verify=True)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def functions(module: ModuleOp) -> dict[str, FuncOp]:
    return {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}


def called(module: ModuleOp) -> list[str]:
    """Return the functions that @main calls, in order."""
    return [op.callee.string_value() for op in functions(module)["main"].body.block.ops if isinstance(op, CallOp)]


def layers(depth: int, line: str = "") -> str:
    """A chain of layers, each a product with a matrix of its own, then tanh."""
    lines = []
    for i in range(depth):
        dot = f"lazytpu.dot_general %h{i}, %w{i} lhs_contract = [1] rhs_contract = [0] precision = highest : {MATRIX}"
        lines += [f"%p{i} = {dot}{line}", f"%h{i + 1} = lazytpu.tanh %p{i} : {MATRIX}{line}"]
    return "\n".join(lines)


def weights(depth: int) -> str:
    return ", ".join(f"%w{i} : {MATRIX}" for i in range(depth))


def test_equal_layers_are_one_function() -> None:
    module = clustered(f"%h0 : {MATRIX}, {weights(3)}", f"{layers(3)}\nfunc.return %h3 : {MATRIX}")
    expected = f"""builtin.module {{
func.func @main(%h0 : {MATRIX}, {weights(3)}) -> {MATRIX} {{
  %0 = func.call @cluster_0(%h0, %w0) : ({MATRIX}, {MATRIX}) -> {MATRIX}
  %1 = func.call @cluster_0(%0, %w1) : ({MATRIX}, {MATRIX}) -> {MATRIX}
  %2 = func.call @cluster_0(%1, %w2) : ({MATRIX}, {MATRIX}) -> {MATRIX}
  func.return %2 : {MATRIX}
}}
func.func private @cluster_0(%0 : {MATRIX} {{}}, %1 : {MATRIX} {{}}) -> {MATRIX} {{
  %2 = lazytpu.dot_general %0, %1 lhs_contract = [1] rhs_contract = [0] precision = highest : {MATRIX}
  %3 = lazytpu.tanh %2 : {MATRIX}
  func.return %3 : {MATRIX}
}}
}}"""
    assert print_module(module) == print_module(parse_module(expected))


@pytest.mark.parametrize("depth", [3, 5, 9])
def test_the_number_of_functions_does_not_depend_on_the_depth(depth: int) -> None:
    ends = f"{layers(depth)}\n%y = lazytpu.exp %h{depth} : {MATRIX}\n%z = lazytpu.log %y : {MATRIX}"
    module = clustered(f"%h0 : {MATRIX}, {weights(depth)}", f"{ends}\nfunc.return %z : {MATRIX}")
    assert called(module) == ["cluster_0"] * depth + ["cluster_1"]


def test_programs_without_repetition_are_unchanged() -> None:
    keeps(
        SMALL,
        f"%x : {VECTOR}",
        f"""
        %0 = lazytpu.exp %x : {VECTOR}
        %1 = lazytpu.log %0 : {VECTOR}
        %2 = lazytpu.neg %1 : {VECTOR}
        func.return %2 : {VECTOR}""",
    )


def test_small_repetitions_are_unchanged() -> None:
    module = clustered(
        f"%h0 : {MATRIX}, {weights(3)}", f"{layers(3)}\nfunc.return %h3 : {MATRIX}", passes="cluster-fusion"
    )
    assert list(functions(module)) == ["main"]


def test_layers_of_other_shapes_are_other_functions() -> None:
    body = f"""
        {layers(2)}
        %s = lazytpu.slice %h2 starts = [0, 0] limits = [2, 2] strides = [1, 1] : ({MATRIX}) -> tensor<2x2xf32>
        %a = lazytpu.dot_general %s, %v0 lhs_contract = [1] rhs_contract = [0] precision = highest : tensor<2x2xf32>
        %b = lazytpu.tanh %a : tensor<2x2xf32>
        %c = lazytpu.dot_general %b, %v1 lhs_contract = [1] rhs_contract = [0] precision = highest : tensor<2x2xf32>
        %d = lazytpu.tanh %c : tensor<2x2xf32>
        func.return %d : tensor<2x2xf32>"""
    module = clustered(f"%h0 : {MATRIX}, {weights(2)}, %v0 : tensor<2x2xf32>, %v1 : tensor<2x2xf32>", body)
    assert called(module) == ["cluster_0", "cluster_0", "cluster_1", "cluster_2", "cluster_2"]


def test_shared_values_do_not_distinguish_the_first_layer() -> None:
    """Constants, values computed from them alone, and broadcasts are copied to their users."""
    shared = f"""
        %c = lazytpu.constant 2.0 : {MATRIX}
        %i = lazytpu.iota dim = 0 : tensor<4x4xi32>
        %j = lazytpu.iota dim = 1 : tensor<4x4xi32>"""
    lines = [shared]
    for i in range(3):
        if i == 0:
            lines.append("%m = lazytpu.compare GE %i, %j : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>")
            lines.append(f"%b = lazytpu.broadcast_in_dim %w dims = [1] : ({VECTOR}) -> {MATRIX}")
        lines.append(f"%p{i} = lazytpu.mul %h{i}, %b : {MATRIX}")
        select = f"(tensor<4x4xi1>, {MATRIX}, {MATRIX}) -> {MATRIX}"
        lines.append(f"%h{i + 1} = lazytpu.select %m, %p{i}, %c : {select}")
    lines.append(f"func.return %h3 : {MATRIX}")
    module = clustered(f"%h0 : {MATRIX}, %w : {VECTOR}", "\n".join(lines))
    assert called(module) == ["cluster_0"] * 3
    cluster = functions(module)["cluster_0"]
    assert [op.name.removeprefix("lazytpu.") for op in cluster.body.block.ops][:-1] == [
        *("broadcast_in_dim", "mul", "iota", "iota", "compare", "constant", "select"),
    ]
    assert [str(t) for t in cluster.function_type.inputs] == [MATRIX, VECTOR], "the vector, not its broadcast"


def test_optimizer_that_goes_list_by_list_is_cut_by_parameter() -> None:
    place = ' loc("train.py":9:0)'
    lines = [f"%k = lazytpu.number %pack 0 : (tensor<9xf32>) -> tensor<f32>{place}"]
    lines.append(f"%b = lazytpu.broadcast_in_dim %k dims = [] : (tensor<f32>) -> {MATRIX}{place}")
    lines += [f"%s{i} = lazytpu.mul %g{i}, %b : {MATRIX}{place}" for i in range(4)]
    lines += [f"%t{i} = lazytpu.add %m{i}, %s{i} : {MATRIX}{place}" for i in range(4)]
    lines += [f"%u{i} = lazytpu.sub %w{i}, %t{i} : {MATRIX}{place}" for i in range(4)]
    names = [f"%{kind}{i}" for kind in "tu" for i in range(4)]
    lines.append(f"func.return {', '.join(names)} : {', '.join([MATRIX] * 8)}")
    taken = [
        f"%{kind}{i} : {MATRIX} {{lazytpu.donate, lazytpu.successor = {i + 4 * (kind == 'w')} : i64}}"
        for kind in "mw"
        for i in range(4)
    ]
    arguments = ", ".join(["%pack : tensor<9xf32>", *(f"%g{i} : {MATRIX}" for i in range(4)), *taken])
    module = clustered(arguments, "\n".join(lines), passes=f"{SMALL},mark-donation")
    assert called(module) == ["cluster_0"] * 4
    update = functions(module)["cluster_0"]
    assert [str(x) for x in update.function_type.inputs] == [MATRIX, "tensor<9xf32>", MATRIX, MATRIX]
    assert update.arg_attrs is not None
    assert [str(x.data.get("lazytpu.alias")) for x in update.arg_attrs] == ["None", "None", "0 : i64", "1 : i64"]


def test_indices_of_numbers_are_an_argument() -> None:
    lines: list[str] = []
    for i in range(3):
        lines.append(f"%a{i} = lazytpu.number %pack {2 * i} : (tensor<9xf32>) -> tensor<f32>")
        lines.append(f"%b{i} = lazytpu.sqrt %a{i} : tensor<f32>")
        lines.append(f"%c{i} = lazytpu.broadcast_in_dim %b{i} dims = [] : (tensor<f32>) -> {VECTOR}")
        lines.append(f"%d{i} = lazytpu.number %pack {8 - i} : (tensor<9xf32>) -> tensor<f32>")
        lines.append(f"%e{i} = lazytpu.broadcast_in_dim %d{i} dims = [] : (tensor<f32>) -> {VECTOR}")
        lines.append(f"%p{i} = lazytpu.mul %h{i}, %c{i} : {VECTOR}")
        lines.append(f"%h{i + 1} = lazytpu.add %p{i}, %e{i} : {VECTOR}")
    lines.append(f"func.return %h3 : {VECTOR}")
    module = clustered(f"%pack : tensor<9xf32>, %h0 : {VECTOR}", "\n".join(lines))
    kinds = f"({VECTOR}, tensor<9xf32>, tensor<2xi32>) -> {VECTOR}"
    read = "(tensor<2xf32>) -> tensor<f32>"
    grown = f"(tensor<f32>) -> {VECTOR}"
    expected = f"""builtin.module {{
func.func @main(%pack : tensor<9xf32>, %h0 : {VECTOR}) -> {VECTOR} {{
  %0 = lazytpu.dense_constant [0, 8] : tensor<2xi32>
  %1 = func.call @cluster_0(%h0, %pack, %0) : {kinds}
  %2 = lazytpu.dense_constant [2, 7] : tensor<2xi32>
  %3 = func.call @cluster_0(%1, %pack, %2) : {kinds}
  %4 = lazytpu.dense_constant [4, 6] : tensor<2xi32>
  %5 = func.call @cluster_0(%3, %pack, %4) : {kinds}
  func.return %5 : {VECTOR}
}}
func.func private @cluster_0(%0 : {VECTOR} {{}}, %1 : tensor<9xf32> {{}}, %2 : tensor<2xi32> {{}}) -> {VECTOR} {{
  %3 = lazytpu.gather %1, %2 collapsed_slice_dims = [0] start_index_map = [0] index_vector_dim = 1 slice_sizes = [1]
      : (tensor<9xf32>, tensor<2xi32>) -> tensor<2xf32>
  %4 = lazytpu.number %3 0 : {read}
  %5 = lazytpu.sqrt %4 : tensor<f32>
  %6 = lazytpu.broadcast_in_dim %5 dims = [] : {grown}
  %7 = lazytpu.mul %0, %6 : {VECTOR}
  %8 = lazytpu.number %3 1 : {read}
  %9 = lazytpu.broadcast_in_dim %8 dims = [] : {grown}
  %10 = lazytpu.add %7, %9 : {VECTOR}
  func.return %10 : {VECTOR}
}}
}}"""
    assert print_module(module) == print_module(parse_module(expected))
    arrays = [np.arange(9, dtype=np.float32), np.ones(4, np.float32)]
    unclustered = parse_main(f"%pack : tensor<9xf32>, %h0 : {VECTOR}", "\n".join(lines))
    for a, b in zip(evaluate(emit(module), arrays), evaluate(emit(unclustered), arrays), strict=True):
        assert_same_bits(a, b)


def test_only_arguments_dead_at_every_call_are_donated() -> None:
    """%h0 must not be overwritten, and it is an argument of the first call: so no call may donate that argument."""
    undonated = clustered(f"%h0 : {MATRIX}, {weights(3)}", f"{layers(3)}\nfunc.return %h3 : {MATRIX}")
    donated = clustered(f"%h0 : {MATRIX} {{lazytpu.donate}}, {weights(3)}", f"{layers(3)}\nfunc.return %h3 : {MATRIX}")
    attributes = [functions(module)["cluster_0"].arg_attrs for module in (undonated, donated)]
    assert [["lazytpu.donate" in argument.data for argument in arguments or ()] for arguments in attributes] == [
        [False, False],
        [True, False],
    ]


def test_recomputation_numbers_do_not_distinguish_clusters() -> None:
    lines: list[str] = []
    for i in range(3):
        mark = f"{{lazytpu.recompute = {i + 1} : i64}}"
        lines += [f"%p{i} = lazytpu.exp %h{i} {mark} : {MATRIX}", f"%h{i + 1} = lazytpu.neg %p{i} {mark} : {MATRIX}"]
    module = clustered(f"%h0 : {MATRIX}", "\n".join([*lines, f"func.return %h3 : {MATRIX}"]))
    assert called(module) == ["cluster_0"] * 3


def test_wiring_distinguishes_clusters() -> None:
    """The same ops in the same order, but the second time with swapped operands."""
    body = f"""
        %0 = lazytpu.exp %x : {VECTOR}
        %1 = lazytpu.sub %0, %x : {VECTOR}
        %2 = lazytpu.exp %1 : {VECTOR}
        %3 = lazytpu.sub %1, %2 : {VECTOR}
        func.return %3 : {VECTOR}"""
    assert called(clustered(f"%x : {VECTOR}", body)) == ["cluster_0", "cluster_1"]


def test_large_parts_are_cut_where_the_fewest_bytes_cross() -> None:
    names = ("exp", "sin", "cos", "tanh", "log", "sqrt", "neg", "abs")
    lines = [f"%v{i} = lazytpu.{name} {f'%v{i - 1}' if i else '%x'} : {MATRIX}" for i, name in enumerate(names)]
    narrow = lines[3].replace(MATRIX, VECTOR).replace("%v2", "%r")
    lines[3] = f"%r = lazytpu.reduce add %v2 dims = [0] : ({MATRIX}) -> {VECTOR}\n{narrow}"
    lines[4:] = [line.replace(MATRIX, VECTOR) for line in lines[4:]]
    module = clustered(
        f"%x : {MATRIX}", "\n".join([*lines, f"func.return %v7 : {VECTOR}"]), passes="cluster-fusion{max-ops=6}"
    )
    assert called(module) == ["cluster_0", "cluster_1"]
    assert [str(t) for t in functions(module)["cluster_1"].function_type.inputs] == [VECTOR]


def test_collectives_are_clusters_by_themselves() -> None:
    lines: list[str] = []
    for i in range(3):
        lines.append(f"%p{i} = lazytpu.exp %h{i} : {MATRIX}")
        lines.append(f"%n{i} = lazytpu.neg %p{i} : {MATRIX}")
        lines.append(f"%h{i + 1} = lazytpu.all_reduce add %n{i} groups = [[0, 1]] : ({MATRIX}) -> {MATRIX}")
    module = clustered(f"%h0 : {MATRIX}", "\n".join([*lines, f"func.return %h3 : {MATRIX}"]))
    assert called(module) == ["cluster_0", "cluster_1"] * 3
    assert [op.name for op in functions(module)["cluster_1"].body.block.ops] == ["lazytpu.all_reduce", "func.return"]


def test_source_lines_are_kept() -> None:
    module = clustered(
        f"%h0 : {MATRIX}, {weights(3)}",
        layers(3, ' loc("model.py":7:0)') + f"\nfunc.return %h3 : {MATRIX}",
    )
    assert print_module(module).count('loc("model.py":7:0)') == 3 + 2, "three calls, and the ops of one layer"


def test_clusters_in_one_program_stay_calls() -> None:
    module = clustered(f"%h0 : {MATRIX}, {weights(3)}", f"{layers(3)}\nfunc.return %h3 : {MATRIX}")
    text = stablehlo_text(emit(module))
    assert (text.count("call @cluster_0"), text.count("func.func private @cluster_0")) == (3, 1)
    alone = stablehlo_text(emit(module, entry="cluster_0"))
    assert "func.func public @main" in alone and "call" not in alone


def test_invalid_options_are_refused() -> None:
    with pytest.raises(PassError, match="min-ops is 0 and max-ops 1000; expected at least 1 and 2"):
        clustered(f"%x : {VECTOR}", f"func.return %x : {VECTOR}", passes="cluster-fusion{min-ops=0}")


# -- the verifier


def test_clusters_that_are_not_convex_are_refused() -> None:
    module = parse_main(
        f"%x : {VECTOR}",
        f"""
        %0 = lazytpu.exp %x : {VECTOR}
        %1 = lazytpu.sin %0 : {VECTOR}
        %2 = lazytpu.add %0, %1 : {VECTOR}
        func.return %2 : {VECTOR}""",
    )
    block = functions(module)["main"].body.block
    exp, sin, add, _ = block.ops
    message = r"cluster 0 is not convex: lazytpu\.sin is on a path that leaves and re-enters it"
    with pytest.raises(VerifyException, match=message):
        check_partition(block, Partition([[exp, add], [sin]], set()))


def test_clusters_with_a_cycle_are_refused() -> None:
    module = parse_main(
        f"%x : {VECTOR}, %y : {VECTOR}",
        f"""
        %0 = lazytpu.exp %x : {VECTOR}
        %1 = lazytpu.exp %y : {VECTOR}
        %2 = lazytpu.neg %0 : {VECTOR}
        %3 = lazytpu.neg %1 : {VECTOR}
        func.return %2, %3 : {VECTOR}, {VECTOR}""",
    )
    block = functions(module)["main"].body.block
    a, b, c, d, _ = block.ops
    with pytest.raises(VerifyException, match=r"clusters \[0, 1\] depend on one another"):
        check_partition(block, Partition([[a, d], [b, c]], set()))


MALFORMED = {
    r"@main of a clustered module must hold only calls; it has lazytpu\.exp": """
        func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @c(%x) : (tensor<4xf32>) -> tensor<4xf32>
          %1 = lazytpu.exp %0 : tensor<4xf32>
          func.return %1 : tensor<4xf32>
        }
        func.func private @c(%x : tensor<4xf32>) -> tensor<4xf32> {
          func.return %x : tensor<4xf32>
        }""",
    "@c is a cluster but is not private": """
        func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @c(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return %0 : tensor<4xf32>
        }
        func.func @c(%x : tensor<4xf32>) -> tensor<4xf32> {
          func.return %x : tensor<4xf32>
        }""",
    "@c calls @d; clusters must not call functions": """
        func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @c(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return %0 : tensor<4xf32>
        }
        func.func private @c(%x : tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @d(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return %0 : tensor<4xf32>
        }
        func.func private @d(%x : tensor<4xf32>) -> tensor<4xf32> {
          func.return %x : tensor<4xf32>
        }""",
    r"operand 0 of func\.call is a result of func\.call, which comes after it": """
        func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @c(%1) : (tensor<4xf32>) -> tensor<4xf32>
          %1 = func.call @c(%x) : (tensor<4xf32>) -> tensor<4xf32>
          func.return %0 : tensor<4xf32>
        }
        func.func private @c(%x : tensor<4xf32>) -> tensor<4xf32> {
          func.return %x : tensor<4xf32>
        }""",
}


@pytest.mark.parametrize("message", MALFORMED)
def test_module_without_clusters_is_refused(message: str) -> None:
    with pytest.raises(VerifyException, match=message):
        check_calls(parse_module(f"builtin.module {{{MALFORMED[message]}\n}}"))


# -- random programs


@given(program=programs(), seed=st.integers(0, 9), least=st.integers(1, 3), most=st.integers(2, 5))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW)
def test_same_results(program: str, seed: int, least: int, most: int) -> None:
    arrays, module = inputs(seed), parse_module(program)
    expected = evaluate(emit(module), arrays)
    block = functions(module)["main"].body.block
    clustering = partition(block, least, most)
    check_partition(block, clustering)
    assert all(len(cluster) > 0 for cluster in clustering.clusters)
    run_pipeline(module, passes=f"cluster-fusion{{min-ops={least} max-ops={most}}},mark-donation", verify=True)
    for actual, want in zip(evaluate(emit(module), arrays), expected, strict=True):
        assert_same_bits(actual, want)
