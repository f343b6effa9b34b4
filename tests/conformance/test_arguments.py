"""Integer arguments of torch's ops at several values and shapes, in one process. `make argument-sweep` runs all ops."""

from __future__ import annotations

import pytest
import torch

from tools.conformance.arguments import conduct, integers, varied_calls, with_integer
from tools.conformance.entries import entries

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_traces")]

FEW = ("flip", "roll", "topk", "narrow")


def failures(names: tuple[str, ...], k: int) -> list[object]:
    pattern = "|".join(name.replace(".", r"\.") for name in names)
    reports = [conduct(entry, k) for entry in entries(("float32",), f"^({pattern})$")]
    assert len(reports) >= len(names)
    return [(row.op, row.failures) for row in reports if row.failures]


def test_integer_arguments_keep_the_values_of_their_call() -> None:
    assert not failures(FEW, 1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["diagonal", "tril", "transpose", "sum", "sort", "kthvalue", "index_select"])
def test_integer_arguments_keep_their_values_in_more_samples(name: str) -> None:
    assert not failures((name,), 4)


def test_each_integer_varies() -> None:
    call = (torch.ones(3, 5), ([2, 0], True), {"size": torch.Size([3]), "k": 1})
    assert integers(call) == [2, 0, 3, 1]
    assert with_integer(call, 1, 7)[1] == ([2, 7], True)
    assert with_integer(call, 2, 7)[2] == {"size": (7,), "k": 1}
    calls = list(varied_calls(call, 0))
    assert {tuple(call[0].shape) for call in calls} > {(3, 5)}
    assert all(len({integers(call)[place] for call in calls}) >= 4 for place in range(4))
