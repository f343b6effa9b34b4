"""Differences of modules."""

from __future__ import annotations

from lazytpu.inspection.diff import diff, with_context
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.pipeline import run_pipeline
from tests.inspection.samples import BEFORE


def changed(before: str, after: str) -> list[str]:
    return [f"{line.sign} {line.text.strip()}" for line in diff(before, after) if line.sign != " "]


def body(*lines: str) -> str:
    return "\n".join(["func.func @main(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>) {", *lines, "}"])


def test_a_module_and_itself() -> None:
    assert changed(BEFORE, BEFORE) == []
    assert changed(BEFORE, BEFORE.replace("train.py", "other.py")) == []


def test_renumbering_is_no_difference() -> None:
    before = body(
        "%0 = lazytpu.sin %x : tensor<f32>", "%1 = lazytpu.exp %x : tensor<f32>", "%2 = lazytpu.neg %1 : tensor<f32>"
    )
    after = body("%0 = lazytpu.exp %x : tensor<f32>", "%1 = lazytpu.neg %0 : tensor<f32>")
    assert changed(before, after) == ["- %0 = lazytpu.sin %x : tensor<f32>"]


def test_another_operand_is_a_difference() -> None:
    before = body("%0 = lazytpu.sub %x, %y : tensor<f32>", "%1 = lazytpu.neg %0 : tensor<f32>")
    after = body("%0 = lazytpu.sub %y, %x : tensor<f32>", "%1 = lazytpu.neg %0 : tensor<f32>")
    assert changed(before, after) == [
        "- %0 = lazytpu.sub %x, %y : tensor<f32>",
        "+ %0 = lazytpu.sub %y, %x : tensor<f32>",
    ]


def test_changed_attributes_of_arguments_do_not_spread() -> None:
    after = BEFORE.replace("lazytpu.donate", "lazytpu.alias = 1 : i64")
    assert [line[:11] for line in changed(BEFORE, after)] == ["- func.func", "+ func.func"]


def test_the_changes_of_a_pass() -> None:
    module = parse_module(BEFORE)
    run_pipeline(module, passes="canonicalize", verify=False)
    lines = changed(print_module(parse_module(BEFORE)), print_module(module))
    assert [line.split(" : ")[0] for line in lines] == [
        "- %0 = lazytpu.transpose %w [1, 0]",
        "- %1 = lazytpu.dot_general %x, %0 lhs_contract = [1] rhs_contract = [0] precision = highest",
        "+ %0 = lazytpu.dot_general %x, %w lhs_contract = [1] rhs_contract = [1] precision = highest",
    ]


def test_context_around_differences() -> None:
    lines = [f"%{i} = lazytpu.constant {i}.0 : tensor<f32>" for i in range(20)]
    shown = list(with_context(diff(body(*lines), body(*lines[:10], *lines[11:])), around=2))
    assert [line and line.sign for line in shown].count("-") == 1
    assert shown[0] is None
    assert len([line for line in shown if line]) == 5


def test_merged_expressions_do_not_spread() -> None:
    before = body(
        "%0 = lazytpu.exp %x : tensor<f32>",
        "%1 = lazytpu.neg %0 : tensor<f32>",
        "%2 = lazytpu.exp %x : tensor<f32>",
        "%3 = lazytpu.sin %2 : tensor<f32>",
    )
    after = body(
        "%0 = lazytpu.exp %x : tensor<f32>", "%1 = lazytpu.neg %0 : tensor<f32>", "%2 = lazytpu.sin %0 : tensor<f32>"
    )
    assert changed(before, after) == ["- %2 = lazytpu.exp %x : tensor<f32>"]
