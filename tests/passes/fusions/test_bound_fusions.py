"""Barriers where a fusion would become too large."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.ir.module import options_of
from lazytpu.ir.text import print_module
from lazytpu.passes.fusions.barriers import KEEP_BARRIERS
from lazytpu.passes.pipeline import PassError, for_target, run_pipeline
from lazytpu.passes.target import Target
from lazytpu.runtime.xla import client, module_options
from lazytpu.runtime.xla.mlir import ir
from tests.passes.modules import parse_main

F32 = "tensor<4xf32>"
X = f"%x : {F32}"


def bounded(limit: int, arguments: str, body: str) -> str:
    module = parse_main(arguments, body)
    run_pipeline(module, passes=f"bound-fusions{{limit={limit}}}", verify=True)
    assert options_of(module) == (KEEP_BARRIERS if "lazytpu.barrier" in print_module(module) else {})
    once = print_module(module)
    run_pipeline(module, passes=f"bound-fusions{{limit={limit}}}", verify=True)
    assert print_module(module) == once, "a second run changed the module"
    module.attributes.clear()
    return once if options_of(module) else print_module(module)


def same(limit: int, arguments: str, before: str, after: str) -> None:
    assert bounded(limit, arguments, before) == print_module(parse_main(arguments, after))


def test_chain_is_split() -> None:
    same(
        2,
        X,
        f"""
        %0 = lazytpu.sin %x : {F32}
        %1 = lazytpu.cos %0 : {F32}
        %2 = lazytpu.sin %1 : {F32}
        %3 = lazytpu.cos %2 : {F32}
        func.return %3 : {F32}""",
        f"""
        %0 = lazytpu.sin %x : {F32}
        %1 = lazytpu.cos %0 : {F32}
        %2 = lazytpu.barrier %1 : {F32}
        %3 = lazytpu.sin %2 : {F32}
        %4 = lazytpu.cos %3 : {F32}
        func.return %4 : {F32}""",
    )


def test_ops_count_once_for_all_their_uses() -> None:
    body = f"""
        %0 = lazytpu.sin %x : {F32}
        %1 = lazytpu.mul %0, %0 : {F32}
        %2 = lazytpu.add %1, %0 : {F32}
        func.return %2 : {F32}"""
    same(3, X, body, body)


def test_largest_operand_is_materialized_for_all_its_users() -> None:
    same(
        3,
        X,
        f"""
        %0 = lazytpu.sin %x : {F32}
        %1 = lazytpu.cos %0 : {F32}
        %2 = lazytpu.neg %x : {F32}
        %3 = lazytpu.abs %1 : {F32}
        %4 = lazytpu.add %2, %3 : {F32}
        %5 = lazytpu.mul %4, %3 : {F32}
        func.return %5, %3 : {F32}, {F32}""",
        f"""
        %0 = lazytpu.sin %x : {F32}
        %1 = lazytpu.cos %0 : {F32}
        %2 = lazytpu.neg %x : {F32}
        %3 = lazytpu.abs %1 : {F32}
        %4 = lazytpu.barrier %3 : {F32}
        %5 = lazytpu.add %2, %4 : {F32}
        %6 = lazytpu.mul %5, %4 : {F32}
        func.return %6, %4 : {F32}, {F32}""",
    )


def test_source_of_a_broadcast_is_materialized() -> None:
    same(
        3,
        "%x : tensor<f32>",
        f"""
        %0 = lazytpu.sin %x : tensor<f32>
        %1 = lazytpu.cos %0 : tensor<f32>
        %2 = lazytpu.broadcast_in_dim %1 dims = [] : (tensor<f32>) -> {F32}
        %3 = lazytpu.sin %2 : {F32}
        func.return %3 : {F32}""",
        f"""
        %0 = lazytpu.sin %x : tensor<f32>
        %1 = lazytpu.cos %0 : tensor<f32>
        %2 = lazytpu.barrier %1 : tensor<f32>
        %3 = lazytpu.broadcast_in_dim %2 dims = [] : (tensor<f32>) -> {F32}
        %4 = lazytpu.sin %3 : {F32}
        func.return %4 : {F32}""",
    )


def test_products_are_materialized_and_long_ops_count_more() -> None:
    square = "tensor<2x2xf32>"
    product = f"""
        %0 = lazytpu.sin %x : {square}
        %1 = lazytpu.dot_general %0, %x lhs_contract = [1] rhs_contract = [0] precision = highest
             : ({square}, {square}) -> {square}
        %2 = lazytpu.sin %1 : {square}
        func.return %2 : {square}"""
    same(1, f"%x : {square}", product, product)
    long = f"""
        %0 = lazytpu.lgamma %x : {F32}
        %1 = lazytpu.sin %0 : {F32}
        func.return %1 : {F32}"""
    same(17, X, long, long)
    assert "lazytpu.barrier" in bounded(16, X, long)


def test_pass_is_for_the_cpu_only() -> None:
    assert "bound-fusions" in for_target(Target("cpu"))
    assert "bound-fusions" not in for_target(Target("tpu"))
    with pytest.raises(PassError, match="expected at least 1 op"):
        run_pipeline(parse_main(X, f"func.return %x : {F32}"), passes="bound-fusions{limit=0}", verify=True)


def numbers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(400):
        x = x + 1
    return x


def pieces(x: torch.Tensor) -> torch.Tensor:
    for row in torch.ones(400, 4, device=x.device).cumsum(0).unbind():
        x = x + row
    return x


def many(x: torch.Tensor) -> torch.Tensor:
    return sum((torch.full((4,), float(i)).to(x.device) for i in range(400)), x)


def functions(x: torch.Tensor) -> torch.Tensor:
    for _ in range(150):
        x = torch.exp(-x) + 1
    return x


def shared(x: torch.Tensor) -> torch.Tensor:
    for _ in range(150):
        x = torch.where(x > 0, x * 0.5 + 1, -x)
    return x


@pytest.mark.parametrize("chain", [numbers, pieces, many, functions, shared], ids=lambda chain: chain.__name__)
def test_no_chain_is_one_fusion(chain: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In XLA's compiled program, including broadcasts, conversions and reads of numbers."""
    start = torch.arange(4.0)
    with lazytpu.options(mode="lazy"):
        result = chain(start.to("tpu"))
        torch.testing.assert_close(result.cpu(), chain(start))
    text = max((graph.stablehlo() for graph in lazytpu.graphs()[-3:]), key=len)
    with client.mlir_context():
        parsed = ir.Module.parse(text)
        executable = client.compile_module(parsed, options=module_options.options_of(parsed))
    fused = re.findall(r"^%fused_computation.*?^}", executable.hlo_modules()[0].to_string(), re.M | re.S)
    assert fused
    assert max(body.count(" = ") for body in fused) < 600
