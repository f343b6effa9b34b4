"""Ops of torch's database at three sizes, with one program for all of them. `make padding-sweep` runs all ops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tools.conformance import padding, rows, sizes
from tools.conformance.entries import entries
from tools.conformance.padding import conduct, scale

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch's own samples warn
    pytest.mark.usefixtures("fresh_traces"),  # what other sizes showed of the same ops
]

PADDED = (
    *("addmm", "cat", "cumsum", "diagonal", "gather", "index_add", "linalg.inv", "logcumsumexp", "masked_select"),
    *("nn.functional.avg_pool1d", "nn.functional.conv1d", "nn.functional.dropout", "nn.functional.mse_loss", "nonzero"),
    *("nn.functional.max_pool2d", "roll", "searchsorted", "softmax", "topk", "trace", "tril", "unique", "var_mean"),
)


@pytest.mark.parametrize("batch", range(4))
def test_one_program_for_three_sizes(batch: int) -> None:
    names = "|".join(name.replace(".", r"\.") for name in PADDED[batch::4])
    found = [conduct(entry, 1) for entry in entries(("float32",), f"^({names})$")]
    assert len(found) == len(PADDED[batch::4]) and all(row.samples for row in found)
    assert not [(row.op, row.failures) for row in found if row.failures]


def test_what_is_refused_says_why() -> None:
    (entry,) = entries(("float32",), r"^nn\.functional\.adaptive_avg_pool1d$")
    (failure,) = [f for f in conduct(entry, 1).failures if f["check"] == "forward"]
    assert failure["error"] == "OfItsSize"
    assert "the size" in failure["message"]
    assert "aten._adaptive_avg_pool2d" in failure["message"]


def test_a_call_is_scaled_wherever_the_size_occurs() -> None:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    call = (x, (x, [3, 2], 3), {"y": torch.tensor([True, False, True]), "size": torch.Size([3])})
    given, (same, sizes, number), named = scale(call, 3, 2)
    assert given is same and given.shape == (2, 6) and given.requires_grad
    assert torch.equal(given[:, :3], x) and not (given[:, 3:] > x).any() and given.unique().numel() == 11
    assert named["y"].tolist() == [True, False, True] * 2
    assert (sizes, number, named["size"]) == ([3, 2], 3, (3,))
    _, (_, sizes, number), named = scale(call, 3, 2, numbers=True)
    assert (sizes, number, named["size"]) == ([6, 2], 6, (6,))


def test_the_page_says_how_many_and_why(tmp_path: Path) -> None:
    reason = "the template 'svd' reads all elements\n  at the op `lazytpu.template (tensor<3x3xf32>)`"
    results = [rows.Row(op, "float32", 1, samples=int(op != "eye")) for op in ("add", "svd", "eye")]
    results[0].add("forward", 0, None)
    results[1].add("forward", 0, padding.OfItsSize(reason))
    file = tmp_path / "padding.jsonl"
    file.write_text("".join(json.dumps(vars(row)) + "\n" for row in results))
    told = sizes.summary(rows.latest(file))
    assert told == {
        "ops": 2,
        "padded": 1,
        "wrong": 0,
        "refused": {"the template 'svd' reads all elements at the op `lazytpu.template`": ["svd"]},
    }
    text = "\n".join(sizes.section(told))
    assert "1 of 2 ops do (50 %);\n0 are wrong" in text and "| `svd` |" in text
