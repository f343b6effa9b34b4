"""Parameters that are updated alike become one flat argument."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.evaluate import evaluate
from tests.passes.modules import module
from tests.passes.test_semantics import assert_same_bits

# A step of momentum for two parameters: each has a rate of its own, and both are read before they are updated.
ARGUMENTS = """%n: tensor<3xf32>,
    %w: tensor<2x2xf32> {lazytpu.donate, lazytpu.successor = 1 : i64},
    %b: tensor<3xf32> {lazytpu.donate, lazytpu.successor = 0 : i64},
    %v: tensor<2x2xf32> {lazytpu.donate, lazytpu.successor = 3 : i64},
    %u: tensor<3xf32> {lazytpu.donate, lazytpu.successor = 4 : i64}"""
STEP = """
    %g = lazytpu.reverse %w dims = [0] : tensor<2x2xf32>
    %h = lazytpu.reverse %b dims = [0] : tensor<3xf32>
    %v1 = lazytpu.add %v, %g : tensor<2x2xf32>
    %u1 = lazytpu.add %u, %h : tensor<3xf32>
    %n0 = lazytpu.number %n 0 : (tensor<3xf32>) -> tensor<f32>
    %n2 = lazytpu.number %n 2 : (tensor<3xf32>) -> tensor<f32>
    %r = lazytpu.broadcast_in_dim %n2 dims = [] : (tensor<f32>) -> tensor<2x2xf32>
    %s = lazytpu.broadcast_in_dim %n0 dims = [] : (tensor<f32>) -> tensor<3xf32>
    %v2 = lazytpu.mul %v1, %r : tensor<2x2xf32>
    %u2 = lazytpu.mul %u1, %s : tensor<3xf32>
    %w1 = lazytpu.sub %w, %v2 : tensor<2x2xf32>
    %b1 = lazytpu.sub %b, %u2 : tensor<3xf32>
    func.return %b1, %w1, %g, %v1, %u1 :
        tensor<3xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<3xf32>"""
STEP = re.sub(r":\n\s+", ": ", STEP)


def rewritten(body: str = STEP, options: str = "lanes=2", arguments: str = ARGUMENTS) -> str:
    """The text of a module after the pass; names of values are counted anew."""
    made = module(arguments, body)
    run_pipeline(made, passes=f"resident-storage{{{options}}},mark-donation", verify=True)
    return print_module(made)


def unchanged(body: str = STEP, options: str = "lanes=2", arguments: str = ARGUMENTS) -> bool:
    made = module(arguments, body)
    run_pipeline(made, passes="mark-donation", verify=True)
    return rewritten(body, options, arguments) == print_module(made)


def test_updates_of_two_parameters_are_one() -> None:
    text = rewritten()
    function, *body = [re.sub(r"%\w+", "%", line.strip()) for line in text.splitlines()[1:-2]]
    assert "%: tensor<7xf32> {lazytpu.name" in function and "lazytpu.alias = 0" in function
    flat = [re.findall(r"parts = array<i64: ([\d, ]+)>", side) for side in function.split("->")]
    assert flat == [["2, 1", "4, 3"], ["0, 1", "4, 3"]]  # the smaller first, in arguments and results alike
    assert [line.split(" : ")[0] for line in body] == [
        "% = lazytpu.slice % starts = [0] limits = [3] strides = [1]",  # %b
        "% = lazytpu.slice % starts = [3] limits = [7] strides = [1]",
        "% = lazytpu.reshape %",  # %w
        "% = lazytpu.reverse % dims = [0]",
        "% = lazytpu.reverse % dims = [0]",
        "% = lazytpu.reshape %",
        "% = lazytpu.concatenate %, % dim = 0",  # the gradients
        "% = lazytpu.add %, %",
        "% = lazytpu.slice % starts = [0] limits = [3] strides = [2]",  # the rates, repeated over the parts
        "% = lazytpu.slice % starts = [0] limits = [1] strides = [1]",
        "% = lazytpu.broadcast_in_dim % dims = [0]",
        "% = lazytpu.reshape %",
        "% = lazytpu.slice % starts = [1] limits = [2] strides = [1]",
        "% = lazytpu.broadcast_in_dim % dims = [0]",
        "% = lazytpu.reshape %",
        "% = lazytpu.concatenate %, % dim = 0",
        "% = lazytpu.mul %, %",
        "% = lazytpu.sub %, %",
        "func.return %, %, %",
    ]


def test_joined_by_padding_on_a_tpu() -> None:
    text = rewritten(options='lanes=2 join="pad"')
    assert "concatenate" not in text and text.count("lazytpu.pad") == 4
    assert "lazytpu.constant -0.0" in text  # 0.0 + -0.0 is 0.0, -0.0 + -0.0 is -0.0


@pytest.mark.parametrize("join", ["concatenate", "pad"])
def test_results_have_the_bits_that_they_had(join: str) -> None:
    random = np.random.default_rng(0)
    n, w, b, v, u = (random.standard_normal(shape, dtype="f") for shape in ((3,), (2, 2), (3,), (2, 2), (3,)))
    v[0], b[1], u[2] = -0.0, np.inf, np.nan
    wanted = evaluate(emit(module(ARGUMENTS, STEP)), [n, w, b, v, u])
    made = module(ARGUMENTS, STEP)
    run_pipeline(made, passes=f'resident-storage{{lanes=2 join="{join}"}}', verify=True)
    flat = [np.concatenate([x.reshape(-1), y.reshape(-1)]) for x, y in ((b, w), (u, v))]
    new, moments, gradient = evaluate(emit(made), [n, w, b, v, u, *flat])
    assert_same_bits(gradient, wanted[2])
    assert_same_bits(new, np.concatenate([wanted[0], wanted[1].reshape(-1)]))
    assert_same_bits(moments, np.concatenate([wanted[4], wanted[3].reshape(-1)]))


def test_what_is_computed_alike_before_is_computed_once() -> None:
    """The square of a gradient is that of the joined gradients, and not the joined squares."""
    arguments = """%w: tensor<2x2xf32> {lazytpu.donate, lazytpu.successor = 1 : i64},
        %b: tensor<3xf32> {lazytpu.donate, lazytpu.successor = 0 : i64}"""
    body = """
        %g = lazytpu.reverse %w dims = [0] : tensor<2x2xf32>
        %h = lazytpu.reverse %b dims = [0] : tensor<3xf32>
        %g2 = lazytpu.mul %g, %g : tensor<2x2xf32>
        %h2 = lazytpu.mul %h, %h : tensor<3xf32>
        %w1 = lazytpu.sub %w, %g2 : tensor<2x2xf32>
        %b1 = lazytpu.sub %b, %h2 : tensor<3xf32>
        func.return %b1, %w1 : tensor<3xf32>, tensor<2x2xf32>"""
    text = rewritten(body, arguments=arguments)
    assert (text.count("lazytpu.mul"), text.count("lazytpu.concatenate")) == (1, 1)


DIFFERENT = {
    "another op": ("%b1 = lazytpu.sub", "%b1 = lazytpu.add"),
    "another order": ("lazytpu.sub %b, %u2", "lazytpu.sub %u2, %b"),
    "not elementwise": ("%b1 = lazytpu.sub %b, %u2", "%b1 = lazytpu.reverse %b dims = [0]"),
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_different_updates_stay_apart(change: str) -> None:
    assert unchanged(STEP.replace(*DIFFERENT[change]))


def test_few_large_and_kept_arguments_stay_as_they_are() -> None:
    assert unchanged(options="lanes=3")
    assert unchanged(options="lanes=2 limit=3")
    kept = ARGUMENTS.replace("%b: tensor<3xf32> {lazytpu.donate, lazytpu.successor = 0 : i64}", "%b: tensor<3xf32>")
    assert unchanged(arguments=kept)


ALONE = """
    %w1 = lazytpu.sub %w, %v : tensor<2x2xf32>
    %b1 = lazytpu.sub %b, %u : tensor<3xf32>
    func.return %b1, %w1 : tensor<3xf32>, tensor<2x2xf32>"""
GIVEN = "%w: tensor<2x2xf32> {lazytpu.donate, lazytpu.successor = 1 : i64}, %v: tensor<2x2xf32>, %u: tensor<3xf32>, "
GIVEN += "%b: tensor<3xf32> {lazytpu.donate, lazytpu.successor = 0 : i64}"


def test_what_another_program_reads_stays_as_it_is_unless_asked_for() -> None:
    assert unchanged(ALONE, arguments=GIVEN)
    assert rewritten(ALONE, "lanes=2 alone=true", GIVEN).count("lazytpu.sub") == 1


def test_unknown_way_to_join() -> None:
    with pytest.raises(PassError, match="join is concatenate or pad; got 'glue'"):
        rewritten(options='lanes=2 join="glue"')
