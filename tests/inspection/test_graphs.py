"""Programs as objects."""

from __future__ import annotations

import pytest

from lazytpu.inspection import graphs
from lazytpu.inspection.graphs import ProgramGraph, Texts
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import run_pipeline
from tests.inspection.samples import BEFORE


def test_graph_of_a_program() -> None:
    module = parse_module(BEFORE)
    records = run_pipeline(module, verify=False)
    text = print_module(module)
    graph = ProgramGraph(3, "train_step", 7, Texts(text, "stablehlo text ü", records))
    assert graph.text() == text
    assert graph.stablehlo() == "stablehlo text ü"
    assert graph.passes == tuple(records)
    assert (graph.number, graph.name, graph.ops) == (3, "train_step", 5)
    assert (graph.arguments, graph.aliased) == (2, 1)
    assert repr(graph) == "<graph 3 train_step: 5 ops (from 6), 2 arguments (1 overwritten by results)>"


def test_names_of_arguments_are_not_counted_as_arguments() -> None:
    text = 'func.func @main(%0: tensor<f32> {lazytpu.name = "50% (lazytpu.alias) -> \\"x\\" %y"}) -> (tensor<f32>) {'
    graph = ProgramGraph(0, "main", 1, Texts(text, "", ()))
    assert (graph.arguments, graph.aliased) == (1, 0)
    assert repr(graph) == "<graph 0 main: 0 ops, 1 arguments>"


def test_only_the_newest_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [ProgramGraph(i, "step", 1, Texts(f"text {i}", "stablehlo", ())) for i in range(5)]
    monkeypatch.setattr(graphs, "KEPT_BYTES", 2 * programs[0].nbytes)
    kept = graphs.ProgramGraphs()
    for program in programs:
        kept.append(program)
    assert [program.number for program in kept] == [0, 1, 2, 3, 4]
    assert [program.nbytes > 0 for program in kept] == [False, False, False, True, True]
    assert kept[4].text() == "text 4"
    with pytest.raises(LookupError, match=r"program 0 were dropped.*LAZYTPU_DUMP"):
        kept[0].text()


def test_a_graph_larger_than_the_limit_is_kept_while_it_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "KEPT_BYTES", 1)
    kept = graphs.ProgramGraphs()
    for i in range(2):
        kept.append(ProgramGraph(i, "step", 1, Texts(f"text {i}", "stablehlo", ())))
    assert kept[1].text() == "text 1"
    assert kept[0].nbytes == 0


def test_texts_of_a_loaded_program_are_computed_on_first_use() -> None:
    asked: list[int] = []

    def make() -> Texts:
        asked.append(1)
        return Texts(BEFORE, "stablehlo", ())

    graph = ProgramGraph(2, "step", 1234, make)
    assert repr(graph) == "<graph 2 step: 1,234 recorded ops, compiled by an earlier process>"
    assert graph.nbytes == 1234 * graphs.RECORD_BYTES
    assert not asked
    assert graph.text() == BEFORE and graph.stablehlo() == "stablehlo" and graph.arguments == 2
    assert asked == [1]
    assert repr(graph).startswith("<graph 2 step: 0 ops, 2 arguments")


def test_failed_texts_are_computed_again() -> None:
    def fail() -> Texts:
        raise ValueError("no rule")

    graph = ProgramGraph(0, "step", 1, fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no rule"):
            graph.text()


def test_uncomputed_texts_are_dropped_like_others() -> None:
    graph = ProgramGraph(4, "step", 1, lambda: Texts("text", "stablehlo", ()))
    graph.drop_texts()
    assert graph.nbytes == 0
    with pytest.raises(LookupError, match="program 4 were dropped"):
        graph.text()
