"""OpGraph, compared with networkx on random graphs."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from lazytpu.passes.graph import OpGraph, bits, cycle_of, members, nbytes
from tests.passes.modules import parse_main

quickly = settings(max_examples=60, deadline=None, derandomize=True)

# Each op adds two existing values: the arguments are 0 and 1.
WIRES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12)


def block_of(wires: list[tuple[int, int]]) -> Block:
    names = ["%x", "%y"]
    lines: list[str] = []
    for a, b in wires:
        names.append(f"%v{len(lines)}")
        lhs, right = names[a % (len(names) - 1)], names[b % (len(names) - 1)]
        lines.append(f"{names[-1]} = lazytpu.add {lhs}, {right} : tensor<4xf32>")
    body = "\n".join([*lines, f"func.return {names[-1]} : tensor<4xf32>"])
    return body_of(parse_main("%x : tensor<4xf32>, %y : tensor<4xf32>", body))


def body_of(module: ModuleOp) -> Block:
    (main,) = module.ops
    assert isinstance(main, FuncOp)
    return main.body.block


def digraph(graph: OpGraph) -> nx.DiGraph:
    expected = nx.DiGraph()
    expected.add_nodes_from(range(len(graph.ops)))
    for op, i in graph.index.items():
        expected.add_edges_from((j, i) for source, j in graph.index.items() if set(source.results) & set(op.operands))
    return expected


@given(st.frozensets(st.integers(0, 200)))
@quickly
def test_a_set_of_ops_is_an_integer(ops: frozenset[int]) -> None:
    assert list(members(bits(ops))) == sorted(ops)


@given(WIRES)
@quickly
def test_reachability_agrees_with_networkx(wires: list[tuple[int, int]]) -> None:
    graph = OpGraph(block_of(wires))
    expected = digraph(graph)
    for i in range(len(graph.ops)):
        assert set(members(graph.before[i])) == set(expected.predecessors(i))
        assert set(members(graph.after[i])) == set(expected.successors(i))
        assert set(members(graph.ancestors[i])) == nx.ancestors(expected, i)
        assert set(members(graph.descendants[i])) == nx.descendants(expected, i)


@given(WIRES, st.data())
@quickly
def test_part_is_convex_if_no_path_leaves_and_reenters_it(wires: list[tuple[int, int]], data) -> None:
    graph = OpGraph(block_of(wires))
    numbers = set(data.draw(st.sets(st.sampled_from(range(len(graph.ops))))))
    expected = digraph(graph)
    outside = [i for i in expected if i not in numbers]
    between = {i for i in outside if nx.ancestors(expected, i) & numbers and nx.descendants(expected, i) & numbers}
    assert set(members(graph.between(bits(numbers)))) == between
    assert graph.is_convex(bits(numbers)) == (not between)


@given(WIRES, st.data())
@quickly
def test_quotient_agrees_with_networkx(wires: list[tuple[int, int]], data) -> None:
    graph = OpGraph(block_of(wires))
    number_of = [data.draw(st.integers(0, 3)) for _ in graph.ops]
    part_bits = [bits(i for i, number in enumerate(number_of) if number == group) for group in range(4)]
    quotient = graph.quotient(part_bits)
    edges = {(number_of[a], number_of[b]) for a, b in digraph(graph).edges if number_of[a] != number_of[b]}
    assert set(quotient.edges) == edges
    assert all(edge["nbytes"] == 16 * edge["values"] for _, _, edge in quotient.edges(data=True))
    cycle = cycle_of(quotient)
    assert bool(cycle) == (not nx.is_directed_acyclic_graph(nx.DiGraph(edges)))
    assert all(edge in edges for edge in zip(cycle, cycle[1:] + cycle[:1], strict=True))


@given(WIRES, st.data())
@quickly
def test_critical_path_is_the_longest(wires: list[tuple[int, int]], data) -> None:
    graph = OpGraph(block_of(wires))
    costs = [data.draw(st.integers(1, 9)) for _ in graph.ops]
    most, path = graph.critical_path(lambda op: costs[graph.index[op]])
    expected = digraph(graph)
    for a, b in expected.edges:
        expected.edges[a, b]["weight"] = costs[b]
    expected.add_weighted_edges_from(("before", i, costs[i]) for i in range(len(costs)))
    assert most == nx.dag_longest_path_length(expected)
    assert sum(costs[graph.index[op]] for op in path) == most
    assert all(graph.before[graph.index[b]] >> graph.index[a] & 1 for a, b in pairwise(path))


def test_empty_block() -> None:
    graph = OpGraph(body_of(parse_main("%x : tensor<4xf32>", "func.return %x : tensor<4xf32>")))
    assert graph.everything == 0
    assert graph.critical_path(lambda op: 1.0) == (0.0, [])
    assert list(graph.quotient([])) == []


def test_copied_ops_are_no_nodes() -> None:
    block = body_of(
        parse_main(
            "%x : tensor<4xf32>",
            """
            %0 = lazytpu.exp %x : tensor<4xf32>
            %1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
            %2 = lazytpu.neg %1 : tensor<3x4xf32>
            func.return %2 : tensor<3x4xf32>""",
        )
    )
    exp, broadcast, neg, _ = block.ops
    graph = OpGraph(block, {broadcast})
    assert graph.ops == [exp, neg]
    assert graph.sources[1] == [exp.results[0]]
    assert list(graph.quotient([1, 2]).edges(data=True)) == [(0, 1, {"values": 1, "nbytes": 16})]
    assert [nbytes(op.results[0]) for op in (exp, broadcast)] == [16, 48]


@pytest.mark.parametrize(("parts", "message"), [([1, 1], "in the parts 0 and 1"), ([1], "in none of the 1 parts")])
def test_parts_cover_all_ops_once(parts: list[int], message: str) -> None:
    graph = OpGraph(block_of([(0, 1), (1, 2)]))
    with pytest.raises(ValueError, match=message):
        graph.quotient(parts)
