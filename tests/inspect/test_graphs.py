"""Programs as objects."""

from __future__ import annotations

from lazytpu.inspect.graphs import Graph
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import run_pipeline
from tests.inspect.samples import BEFORE


def test_graph_of_a_program() -> None:
    module = parse_module(BEFORE)
    records = run_pipeline(module, verify=False)
    text = print_module(module)
    graph = Graph(3, "train_step", text, "stablehlo text ü", records)
    assert graph.text() == text
    assert graph.stablehlo() == "stablehlo text ü"
    assert graph.passes == tuple(records)
    assert (graph.number, graph.name, graph.ops) == (3, "train_step", 5)
    assert (graph.arguments, graph.aliased) == (2, 1)
    assert repr(graph) == "<graph 3 train_step: 5 ops (from 6), 2 arguments (1 overwritten by results)>"


def test_names_of_arguments_are_not_counted_as_arguments() -> None:
    text = 'func.func @main(%0: tensor<f32> {lazytpu.name = "50% (lazytpu.alias) -> \\"x\\" %y"}) -> (tensor<f32>) {'
    graph = Graph(0, "main", text, "", ())
    assert (graph.arguments, graph.aliased) == (1, 0)
    assert repr(graph) == "<graph 0 main: 0 ops, 1 arguments>"
