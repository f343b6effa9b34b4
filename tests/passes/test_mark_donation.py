"""Donated arguments and the results that reuse their buffers."""

from __future__ import annotations

import time

import pytest
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import FuncOp

from lazytpu.passes.pipeline import run_pipeline
from tests.passes.modules import parse_main


def aliases(arguments: str, body: str) -> list[int | None]:
    """Return the result that each argument aliases after the pass; no other mark may remain."""
    marked = parse_main(arguments, body)
    results: list[int | None] = []
    for _ in range(2):  # a second run changes nothing
        run_pipeline(marked, passes="mark-donation", verify=True)
        (function,) = marked.ops
        assert isinstance(function, FuncOp)
        results = []
        for attributes in function.arg_attrs or ():
            assert "lazytpu.donate" not in attributes.data
            assert "lazytpu.successor" not in attributes.data
            alias = attributes.data.get("lazytpu.alias")
            results.append(alias.value.data if isinstance(alias, IntegerAttr) else None)
    return results


T, U = "tensor<4xf32>", "tensor<2xf32>"
DONATE = "{lazytpu.donate}"


def successor(i: int) -> str:
    return f"{{lazytpu.donate, lazytpu.successor = {i} : i64}}"


TWO = f"%0 = lazytpu.exp %a : {T}\n%1 = lazytpu.log %b : {T}\nfunc.return %0, %1 : {T}, {T}"


def test_arguments_are_paired_by_type_in_order() -> None:
    assert aliases(f"%a : {T} {DONATE}, %b : {T} {DONATE}", TWO) == [0, 1]
    assert aliases(f"%a : {T}, %b : {T} {DONATE}", TWO) == [None, 0]


def test_successors_are_paired_first() -> None:
    assert aliases(f"%a : {T} {DONATE}, %b : {T} {successor(0)}", TWO) == [1, 0]
    assert aliases(f"%a : {T} {successor(1)}, %b : {T} {successor(0)}", TWO) == [1, 0]


def test_result_is_paired_once() -> None:
    assert aliases(f"%a : {T} {successor(0)}, %b : {T} {successor(0)}", TWO) == [0, 1]
    body = f"%0 = lazytpu.add %a, %b : {T}\nfunc.return %0 : {T}"
    assert aliases(f"%a : {T} {DONATE}, %b : {T} {DONATE}", body) == [0, None]


def test_types_must_agree() -> None:
    body = f"""
    %0 = lazytpu.slice %a starts = [0] limits = [2] strides = [1] : ({T}) -> {U}
    %1 = lazytpu.log %b : {T}
    func.return %0, %1 : {U}, {T}"""
    assert aliases(f"%a : {T} {successor(0)}, %b : {T}", body) == [1, None]
    assert aliases(f"%a : {T}, %b : {T} {successor(7)}", body) == [None, 1]


def test_unusable_donation_is_dropped() -> None:
    body = f"%0 = lazytpu.slice %a starts = [0] limits = [2] strides = [1] : ({T}) -> {U}\nfunc.return %0 : {U}"
    assert aliases(f"%a : {T} {DONATE}", body) == [None]


def test_returned_argument_keeps_its_buffer() -> None:
    body = f"%0 = lazytpu.exp %a : {T}\nfunc.return %b, %0 : {T}, {T}"
    assert aliases(f"%a : {T} {DONATE}, %b : {T}", body) == [1, None]
    assert aliases(f"%a : {T} {DONATE}, %b : {T} {DONATE}", body) == [1, 0]
    assert aliases(f"%a : {T}, %b : {T} {successor(1)}", body) == [None, 0]


def test_arguments_without_donation_are_left_alone() -> None:
    assert aliases(f"%a : {T}, %b : {T}", TWO) == []
    assert aliases(f'%a : {T} {{lazytpu.name = "a"}}, %b : {T}', TWO) == [None, None]


@pytest.mark.parametrize("count", [2000])
def test_thousands_of_buffers(count: int) -> None:
    arguments = ", ".join(f"%a{i}x : {T} {successor(count - 1 - i)}" for i in range(count))
    body = "\n".join(f"%r{i}x = lazytpu.neg %a{i}x : {T}" for i in range(count))
    results, types = ", ".join(f"%r{i}x" for i in range(count)), ", ".join([T] * count)
    marked = parse_main(arguments, f"{body}\nfunc.return {results} : {types}")
    before = time.thread_time()
    run_pipeline(marked, passes="mark-donation", verify=False)
    assert time.thread_time() - before < 1.0  # it takes 0.02 s: the pass is not quadratic
