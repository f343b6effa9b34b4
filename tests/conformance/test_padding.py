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
    pytest.mark.usefixtures("fresh_traces"),  # otherwise the same ops at other sizes, seen before, would share programs
]

PADDED = (
    *("addmm", "cat", "cumsum", "diagonal", "gather", "index_add", "linalg.inv", "logcumsumexp", "masked_select"),
    *("nn.functional.avg_pool1d", "nn.functional.conv1d", "nn.functional.dropout", "nn.functional.mse_loss", "nonzero"),
    *("nn.functional.max_pool2d", "roll", "searchsorted", "softmax", "topk", "trace", "tril", "unique", "var_mean"),
)


@pytest.mark.parametrize("batch", range(4))
def test_one_program_for_three_sizes(batch: int) -> None:
    names = "|".join(name.replace(".", r"\.") for name in PADDED[batch::4])
    reports = [conduct(entry, 1) for entry in entries(("float32",), f"^({names})$")]
    assert len(reports) == len(PADDED[batch::4]) and all(row.samples for row in reports)
    assert not [(row.op, row.failures) for row in reports if row.failures]


def test_refusal_has_a_reason() -> None:
    (entry,) = entries(("float32",), r"^nn\.functional\.adaptive_avg_pool1d$")
    (failure,) = [f for f in conduct(entry, 1).failures if f["check"] == "forward"]
    assert failure["error"] == "OfItsSize"
    assert "needs one size" in failure["message"]
    assert "`_adaptive_avg_pool2d` at " in failure["message"]


def test_scaling_changes_every_occurrence_of_the_size() -> None:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    call = (x, (x, [3, 2], 3), {"y": torch.tensor([True, False, True]), "size": torch.Size([3])})
    scaled, (same, sizes, number), named = scale(call, 3, 2)
    assert scaled is same and scaled.shape == (2, 6) and scaled.requires_grad
    assert torch.equal(scaled[:, :3], x) and not (scaled[:, 3:] > x).any() and scaled.unique().numel() == 11
    assert named["y"].tolist() == [True, False, True] * 2
    assert (sizes, number, named["size"]) == ([3, 2], 3, (3,))
    _, (_, sizes, number), named = scale(call, 3, 2, numbers=True)
    assert (sizes, number, named["size"]) == ([6, 2], 6, (6,))


def test_page_shows_counts_and_reasons(tmp_path: Path) -> None:
    reason = "the template 'svd' reads all elements\n  at the op `lazytpu.template (tensor<3x3xf32>)`"
    results = [rows.Row(op, "float32", 1, samples=int(op != "eye")) for op in ("add", "svd", "eye")]
    results[0].add("forward", 0, None)
    results[1].add("forward", 0, padding.OfItsSize(reason))
    file = tmp_path / "padding.jsonl"
    file.write_text("".join(json.dumps(vars(row)) + "\n" for row in results))
    summary = sizes.summary(rows.latest(file))
    assert summary == {
        "ops": 2,
        "padded": 1,
        "wrong": 0,
        "refused": {"the template 'svd' reads all elements at the op `lazytpu.template`": ["svd"]},
    }
    text = "\n".join(sizes.section(summary))
    assert "1 of 2 ops do (50 %);\n0 are wrong" in text and "| `svd` |" in text
