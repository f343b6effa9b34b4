"""A few of the random chains of `make random-convolutions`, and chains that once ended the process."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional

from tools.children import answers
from tools.random_convolutions.__main__ import judged
from tools.random_convolutions.cases import Case, Step, draw
from tools.random_convolutions.worker import difference, outcome

pytestmark = pytest.mark.filterwarnings("ignore")

# Chains whose windows XLA treated as windows of grouped convolutions: in an input gradient, and in transposed
# convolutions.
ENDED = [
    Case(0, (2, 3, 20, 7), torch.float32, False, [
        Step("conv2d", {"stride": (1, 2), "dilation": (2, 1)}, ((4, 3, 1, 3),)),
        Step("conv2d", {"stride": (2, 3), "padding": (1, 1)}, ((2, 4, 2, 3),)),
    ], 1),
    Case(1, (1, 4, 11, 1), torch.float64, False, [
        Step("conv_transpose2d", {"stride": (2, 1), "padding": (1, 1), "groups": 2}, ((4, 3, 2, 3),)),
    ], 2),
    Case(2, (1, 2, 2, 5, 1), torch.float32, True, [
        Step("conv_transpose3d", {"stride": (1, 2, 3), "padding": (0, 1, 1)}, ((2, 3, 1, 2, 3),)),
    ], 1),
]  # fmt: skip


@pytest.mark.parametrize("case", [*ENDED, *map(draw, range(6))], ids=str)
def test_results_and_gradients_equal_the_cpu(case: Case) -> None:
    assert difference(outcome(case, "tpu"), outcome(case, "cpu")) is None


def test_gradient_of_every_second_row_convolved() -> None:
    """Its zeros are interior padding, which XLA turned into a dilation."""
    x, w = torch.randn(2, 11, 1, 3), torch.randn(2, 3, 3, 4)

    def convolved(device: str) -> torch.Tensor:
        x_all = torch.ones(2, 21, 1, 3, device=device, requires_grad=True)
        (grad,) = torch.autograd.grad((x_all[:, ::2] * x.to(device)).sum(), x_all)
        images, kernel = grad.permute(0, 3, 1, 2), w.to(device).permute(3, 2, 0, 1)
        return functional.conv2d(images, kernel, padding=(0, 1)).permute(0, 2, 3, 1).contiguous().cpu()

    torch.testing.assert_close(convolved("tpu"), convolved("cpu"))


def test_chain_is_the_same_in_every_process() -> None:
    assert str(draw(17)) == str(draw(17))


def test_difference_names_the_first_disagreement() -> None:
    ones = [torch.ones(2, 3)], (3, 1)
    assert difference(ones, ([torch.ones(2, 3)], (3, 1))) is None
    assert difference(ones, ([torch.ones(2, 3)], (1, 2))) == "strides (3, 1), expected (1, 2)"
    assert "Mismatched" in str(difference(([torch.zeros(2, 3)], (3, 1)), ones))
    assert "torch.float64" in str(difference(([torch.ones(2, 3).double()], (3, 1)), ones))
    assert difference("RuntimeError: a", "RuntimeError: b") is None
    assert difference("ValueError: a", "RuntimeError: b") == "cpu RuntimeError: b, tpu ValueError: a"
    assert difference(ones, "RuntimeError: b") == "cpu RuntimeError: b, tpu ran"


def test_death_of_a_child_is_reported_and_the_others_continue() -> None:
    child = """
import os, sys
for number in sys.argv[1].split(","):
    print('{"number": %s, "stage": "tpu", "text": "case"}' % number, flush=True)
    if number == "1":
        os.abort()
    print('{"number": %s, "stage": "done", "difference": null}' % number, flush=True)
"""
    verdicts = list(answers(range(3), lambda chunk: [sys.executable, "-c", child, chunk], 30))
    assert [judged(answer) for answer in verdicts] == ["agree", "DIED (exit -6)", "agree"]
