"""A few random calls of `make bad-inputs`, of each kind whose outcome once differed from the CPU's."""

from __future__ import annotations

import json

import pytest
import torch

import lazytpu
from tools.bad_inputs.__main__ import judged
from tools.bad_inputs.cases import draw
from tools.bad_inputs.worker import placed, refusal

# Dtypes without a kernel, combinations of dtypes, results that a tensor cannot hold, values, indices, pivots.
CASES = (1106, 1141, 1160, 1175, 1225, 1234, 1271, 1292, 1293, 1303, 1329, 1499, 1618, 1680, 1697, 1800, 1801, 1825)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", CASES)
def test_bad_calls_raise_the_errors_of_the_cpu(number: int) -> None:
    case = draw(number)
    assert case is not None
    want = refusal(case, "cpu")
    assert want is not None
    answer = {"stage": "done", "want": want, "got": refusal(case, "tpu"), "late": case.late}
    lazytpu.sync()
    assert judged(json.loads(json.dumps(answer))) == "agree", (case.text, answer)


def test_case_is_the_same_in_every_process() -> None:
    first, again = draw(1499), draw(1499)
    assert first is not None and again is not None and first.text == again.text


def test_verdict_compares_the_errors() -> None:
    refused, late = ["RuntimeError", "no", False], ["RuntimeError", "no", True]
    for want, got, verdict in (
        (None, None, "agree"),
        (None, refused, "only tpu refuses"),
        (refused, None, "only the cpu refuses"),
        (refused, ["IndexError", "no", False], "another type"),
        (refused, late, "late"),
        (["RuntimeError", "can't allocate memory", False], None, "agree"),
    ):
        assert judged({"stage": "done", "want": want, "got": got, "late": False}) == verdict
    assert judged({"stage": "done", "want": refused, "got": late, "late": True}) == "agree"
    assert judged({"stage": "tpu", "end": "hangs"}) == "DIED (hangs)"


def test_expanded_tensors_stay_expanded() -> None:
    import torch

    copy, args, _ = placed((torch.ones(()).expand(3), (torch.ones(2),), {}), "cpu")
    assert copy.stride() == (0,) and args[0].tolist() == [1.0, 1.0]


def test_shared_memory_stays_shared_on_the_device() -> None:
    operand = torch.arange(6.0)
    call = operand, (), {"out": operand.view(-1)[1:4]}
    copy, _, options = placed(call, "tpu")
    options["out"].fill_(9)
    assert copy.tolist() == [0, 9, 9, 9, 4, 5]
    copy, _, options = placed((operand, (), {"out": operand}), "tpu")
    assert options["out"] is copy
    assert operand.tolist() == [0, 1, 2, 3, 4, 5]
