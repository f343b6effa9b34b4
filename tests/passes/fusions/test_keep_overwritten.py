"""Slices that depend on other elements of the overwritten array are not written in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazytpu.ir.text import print_module
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

X, ROWS, START = "tensor<4x8xf32>", "tensor<2x8xf32>", "tensor<i32>"


def in_place(update: str, arguments: str = f"%x : {X}, %y : {X}, %i : {START}", starts: str = "%one, %zero") -> bool:
    """Whether `%u`, which `update` computes, is written into `%x` in place. A second run changes nothing."""
    module = parse_main(
        arguments,
        f"""
        %zero = lazytpu.constant 0 : {START}
        %one = lazytpu.constant 1 : {START}
        {update}
        %out = lazytpu.dynamic_update_slice %x, %u, {starts} : ({X}, {ROWS}, {START}, {START}) -> {X}
        func.return %out : {X}""",
    )
    run_pipeline(module, passes="keep-overwritten", verify=True)
    once = print_module(module)
    run_pipeline(module, passes="keep-overwritten", verify=True)
    assert print_module(module) == once
    return "dynamic_update_slice" in once


def rows(name: str, start: int, of: str = "%x", source: str = X) -> str:
    return (
        f"%{name} = lazytpu.slice {of} starts = [{start}, 0] limits = [{start + 2}, 8] strides = [1, 1] "
        f": ({source}) -> {ROWS}"
    )


def test_only_updates_from_other_places_are_rewritten() -> None:
    assert not in_place(rows("u", 0))
    assert not in_place(f"{rows('0', 0)}\n%1 = lazytpu.exp %0 : {ROWS}\n%u = lazytpu.add %1, %1 : {ROWS}")
    assert in_place(rows("u", 1))
    assert in_place(f"{rows('0', 1)}\n%u = lazytpu.exp %0 : {ROWS}")
    assert not in_place(f"{rows('0', 1)}\n%u = lazytpu.reverse %0 dims = [0] : {ROWS}")
    assert in_place(rows("u", 0, of="%y"))
    assert in_place(rows("u", 0), starts="%i, %zero")  # XLA's own rule decides


def test_reshapes_and_products_between() -> None:
    flat = f"%0 = lazytpu.reshape %x : ({X}) -> tensor<32xf32>\n%1 = lazytpu.reshape %0 : (tensor<32xf32>) -> {X}\n"
    assert not in_place(flat + rows("u", 0, of="%1"))
    product = "%0 = lazytpu.dot_general %x, %y lhs_contract = [1] rhs_contract = [1] precision = highest "
    wide = "%1 = lazytpu.broadcast_in_dim %0 dims = [0, 2] : (tensor<4x4xf32>) -> tensor<4x2x4xf32>"
    body = f"{product} : ({X}, {X}) -> tensor<4x4xf32>\n{wide}\n%2 = lazytpu.reshape %1 : (tensor<4x2x4xf32>) -> {X}\n"
    assert in_place(body + rows("u", 0, of="%2"))


@pytest.mark.parametrize("source", [lambda v: v[:, :2], lambda v: v[:, 1:3].flip(1), lambda v: v.mT[:, :2] * 2])
def test_values(source: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        product = (x @ x)[None]
        return torch.slice_scatter(product, source(product), dim=1, start=1, end=3)

    x = torch.arange(16.0).view(4, 4)
    torch.testing.assert_close(shifted(x.to("tpu")).cpu(), shifted(x))


def test_runs_for_the_cpu_only() -> None:
    assert "keep-overwritten" in for_target(Target("cpu")) and "keep-overwritten" not in for_target(Target("tpu"))
