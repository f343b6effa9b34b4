"""lazytpu.memory(): live values, their categories, and the source lines that created them."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.engine.memory.alive import MemoryReport, size
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer

HERE = __file__


@pytest.fixture(autouse=True)
def quiet() -> None:
    lazytpu.sync()
    gc.collect()


def line_of(marker: str) -> str:
    """ "file:line" of the line of this file that ends with the comment `marker`."""
    with open(HERE) as lines:
        (number,) = [n for n, text in enumerate(lines, 1) if text.rstrip().endswith(f"# {marker}")]
    return f"{HERE}:{number}"


def named(report: MemoryReport) -> dict[str, str]:
    return {value.name: value.category for value in report.values if value.name is not None}


def test_training_step_is_reported_by_category() -> None:
    before = lazytpu.memory()
    model = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.BatchNorm1d(40), nn.Linear(40, 7)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(5, 24).to("tpu")  # the batch
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        lazytpu.mark_step()
    report = lazytpu.memory()
    parameters = 24 * 40 + 40 + 40 + 40 + 40 * 7 + 7
    now, then = report.by_category(), before.by_category()

    def grown(category: str) -> int:
        return now[category].nbytes - (then[category].nbytes if category in then else 0)

    assert grown("parameters") == grown("gradients") == 4 * parameters
    assert grown("optimizer state") == 2 * 4 * parameters
    assert grown("module buffers") == 4 * 80 + 8
    assert {"0.weight": "parameters", "2.running_mean": "module buffers", "3.bias.grad": "gradients"}.items() <= named(
        report
    ).items()
    assert named(report)["0.weight.exp_avg_sq"] == "optimizer state"
    inputs = [value for value in report.values if value.line == line_of("the batch")]
    assert [(value.category, value.nbytes, value.shape) for value in inputs] == [("inputs", 4 * 5 * 24, (5, 24))]


def test_report_agrees_with_the_counters() -> None:
    kept = [torch.ones(100).to("tpu") * 2, torch.ones(3, 3, device="tpu") + 1]
    lazytpu.sync()
    report = lazytpu.memory()
    allocated = torch.tpu.memory_allocated()  # pyright: ignore[reportAttributeAccessIssue]
    assert report.allocated == allocated == torch.accelerator.memory_allocated() == lazytpu.metrics()["live_bytes"]
    assert report.allocated == sum(amount.nbytes for amount in report.by_category().values())
    assert report.allocated == sum(amount.nbytes for amount in report.by_line().values())
    assert (report.free, report.total) == (pytest.approx(torch.accelerator.get_memory_info()[0], rel=0.5), report.total)
    assert report.peak == torch.accelerator.max_memory_allocated()
    assert len(kept) == 2


def test_values_of_the_autograd_graph_are_activations() -> None:
    w = torch.ones(16, 16, device="tpu", requires_grad=True)
    x = torch.ones(4, 16, device="tpu")
    hidden = (x @ w).exp()  # hidden
    loss = hidden.tanh().sum()  # loss
    del hidden
    aside = x * 3  # aside
    lazytpu.mark_step()
    values = {value.line: value for value in lazytpu.memory().values}
    assert values[line_of("hidden")].category == "activations", "no tensor holds it, but the backward pass needs it"
    assert values[line_of("loss")].category == "activations"
    assert values[line_of("aside")].category == "other tensors"
    assert values[line_of("aside")].program == "test_values_of_the_autograd_graph_are_activations"
    assert (loss.shape, aside.shape) == ((), (4, 16))


def test_shared_value_is_counted_once() -> None:
    x = torch.ones(50).to("tpu")  # shared
    copies = [x.clone(), x.detach(), x.view(5, 10)]
    values = [value for value in lazytpu.memory().values if value.line == line_of("shared")]
    assert [value.nbytes for value in values] == [200]
    assert all(copy.untyped_storage().nbytes() == 200 for copy in copies)


def test_inputs_held_only_by_recorded_ops_are_pending() -> None:
    x = torch.ones(33).to("tpu")  # overwritten
    x.add_(1)
    assert [value.category for value in lazytpu.memory().values if value.line == line_of("overwritten")] == [
        "pending inputs"
    ]
    lazytpu.mark_step()
    assert [value for value in lazytpu.memory().values if value.line == line_of("overwritten")] == []


def test_backward_op_has_the_line_of_its_forward_op() -> None:
    w = torch.ones(9, 9, device="tpu", requires_grad=True)
    (gradient,) = torch.autograd.grad(w.exp().sum(), w)  # forward
    lazytpu.mark_step()
    lines = [
        value.line for value in lazytpu.memory().values if value.line and value.line.startswith(line_of("forward"))
    ]
    assert lines == [f"{line_of('forward')} (backward)"]
    assert gradient.shape == (9, 9)


def test_views_whose_base_was_written_are_no_leaves() -> None:
    """torch refuses to say the history of one of several views of an op, once their base was written."""
    held = torch.nn.Module()
    base = torch.ones(4096, device="tpu", requires_grad=True) * 2
    held.parts = base.chunk(2)  # pyright: ignore[reportAttributeAccessIssue]
    base.mul_(3)
    with pytest.raises(RuntimeError, match="is a view"):
        _ = held.parts[0].is_leaf
    assert lazytpu.memory().by_category()
    (program,) = rehearse(lambda: base.detach() + 1)
    assert len(program.records) == 1


def test_report_prints_as_table_and_converts_to_json() -> None:
    model = nn.Linear(512, 512).to("tpu")
    report = lazytpu.memory()
    text = str(report)
    assert text.startswith(f"{size(report.allocated)} on the device")
    assert "parameters" in text and "test_alive.py:" in text and "(cached constants)" in text
    data = json.loads(json.dumps(report.as_dict()))
    assert data["allocated"] == report.allocated
    assert data["categories"]["parameters"]["nbytes"] >= 4 * (512 * 512 + 512)
    assert data["values"][0]["nbytes"] == max(value["nbytes"] for value in data["values"])
    assert model.weight.shape == (512, 512)


def test_report_keeps_nothing_alive() -> None:
    x = torch.ones(1 << 16).to("tpu")
    report = lazytpu.memory()
    before = MEMORY.live
    del x
    assert MEMORY.live == before - 4 * (1 << 16)
    assert report.values[0].nbytes >= 4 * (1 << 16)


def test_frozen_objects_are_counted() -> None:
    x = torch.ones(1 << 12).to("tpu")
    gc.freeze()
    try:
        report = lazytpu.memory()
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as after collection (tests/conftest.py)
    assert report.allocated == MEMORY.live
    assert any(value.name == "hidden by gc.freeze()" and value.nbytes >= 4 << 12 for value in report.values)
    assert x.shape == (1 << 12,)


def test_buffer_without_a_tensor_is_other() -> None:
    class Array:
        dtype, shape = "float32", (2,)

    buffer = Buffer(Array(), 8)
    assert any(value.category == "other" and value.nbytes == 8 for value in lazytpu.memory().values)
    assert buffer.nbytes == 8


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 << 20, "10.0 MiB"),
        (3 << 30, "3.00 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_size_has_binary_units(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_report_counts_the_graphs_that_tensors_keep_alive() -> None:
    w = torch.ones(4, requires_grad=True, device="tpu")
    before = lazytpu.memory().graphs
    losses = [(w * i).sum() for i in range(3)]
    report = lazytpu.memory(holders=True)
    assert report.graphs == before + 3
    here = "test_report_counts_the_graphs_that_tensors_keep_alive()"
    assert {f"losses[{i}] in {here}" for i in range(3)} <= set(report.graph_holders)
    assert "graphs of autograd alive" in str(report)
    assert [loss.detach() for loss in losses]
    losses = [loss.detach() for loss in losses]
    assert lazytpu.memory().graphs == before


def test_report_has_the_growth_since_the_last_one() -> None:
    before = [torch.ones(2).to("tpu")]
    lazytpu.memory()
    kept = [torch.ones(25).to("tpu") for _ in range(4)]  # growing
    report = lazytpu.memory()
    assert report.growth()[line_of("growing")].nbytes == 400
    assert report.growth()[line_of("growing")].values == 4
    assert "change since the report before" in str(report)
    assert lazytpu.memory().growth() == {}
    kept.clear()
    assert lazytpu.memory().growth()[line_of("growing")].nbytes == -400
    assert len(before) == 1
