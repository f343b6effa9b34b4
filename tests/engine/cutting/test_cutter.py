"""Cuts: the choice of a program, compilation, donation, and the state after an error."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

import lazytpu


def compiles() -> int:
    return lazytpu.metrics()["compiles"]


def on_tpu(*shape: int, fill: float = 1.0) -> torch.Tensor:
    tensor = torch.full(shape, fill).to("tpu")
    lazytpu.sync()
    return tensor


def test_repeated_step_compiles_once() -> None:
    x = on_tpu(3, 5)
    before = compiles()
    for i in range(5):
        y = (x * 3).tanh()
        lazytpu.mark_step()
        assert compiles() == before + 1, f"step {i}"
        torch.testing.assert_close(y.cpu(), (torch.ones(3, 5) * 3).tanh())


def test_changing_number_compiles_nothing() -> None:
    x = on_tpu(7)
    results = []
    for i in range(4):
        results.append(x * (0.5 + i) + i)
        lazytpu.mark_step()
        if i == 0:
            before = compiles()
    assert compiles() == before
    assert [float(r[0].cpu()) for r in results] == [0.5, 2.5, 4.5, 6.5]


def test_int_and_float_numbers_have_different_programs() -> None:
    x = torch.arange(3, device="tpu")
    y, z = x * 2, x * 2.0
    assert (y.dtype, z.dtype) == (torch.int64, torch.float32)
    assert y.tolist() == z.tolist()


def test_new_shape_compiles_a_new_program() -> None:
    before = compiles()
    for n in (11, 13, 11, 13):
        torch.exp(on_tpu(n, 2))
        y = on_tpu(n, 2).exp()
        lazytpu.mark_step()
        assert y.shape == (n, 2)
    assert compiles() == before + 2


def test_overwritten_storage_donates_its_memory() -> None:
    gc.collect()
    others = lazytpu.metrics()["live_bytes"]
    x = on_tpu(256, 1024)
    lazytpu.reset_metrics()
    size = x.numel() * 4
    for _ in range(3):
        x.mul_(2).add_(1)
        lazytpu.mark_step()
    lazytpu.sync()
    assert lazytpu.metrics()["live_bytes"] - others < 2 * size
    assert lazytpu.metrics()["peak_bytes"] - others < 1.5 * size, "updated in place"


def test_live_input_is_not_donated() -> None:
    x = on_tpu(64, 64, fill=3.0)
    y = x.detach()
    z = x + 1
    x = x * 2
    lazytpu.mark_step()
    assert float(y[0, 0]) == 3.0
    assert float(z[0, 0]) == 4.0
    assert float(x[0, 0]) == 6.0


def test_clone_keeps_its_values_when_the_original_is_overwritten() -> None:
    x = on_tpu(16, fill=2.0)
    y = x.clone()
    x.add_(1)
    lazytpu.mark_step()
    x.add_(1)
    lazytpu.mark_step()
    assert y.tolist() == [2.0] * 16
    assert x.tolist() == [4.0] * 16


def test_program_serves_cuts_with_fewer_live_results() -> None:
    x = on_tpu(9)

    def step(keep: bool) -> list[torch.Tensor]:
        middle = x.exp()
        end = middle.sin()
        kept = [end, middle] if keep else [end]
        del middle, end
        lazytpu.mark_step()
        return kept

    before = compiles()
    step(True)
    assert compiles() == before + 1
    assert len(step(False)) == 1
    assert compiles() == before + 1, "the program with more results is used"


def test_collected_cycles_cause_no_compilation() -> None:
    x = on_tpu(9)

    class Holder:
        pass

    def step() -> float:
        holder = Holder()
        holder.me, holder.value = holder, x.cos()  # type: ignore[attr-defined]
        result = (holder.value * 2).sum()  # type: ignore[attr-defined]
        del holder
        lazytpu.mark_step()
        return float(result)

    gc.disable()
    try:
        step()
    finally:
        gc.enable()
    gc.collect()
    before = compiles()
    for _ in range(3):
        step()
        gc.collect()
    assert compiles() == before


def test_trace_without_live_results_does_not_run() -> None:
    x = on_tpu(4)
    before = lazytpu.metrics()["steps"]
    torch.exp(x)
    lazytpu.mark_step()
    assert lazytpu.metrics()["steps"] == before


@pytest.mark.usefixtures("quick_collections")
def test_live_bytes_stay_constant_over_many_steps() -> None:
    x = on_tpu(32, 32)
    seen = set()
    for _ in range(50):
        x = torch.tanh(x) + 0.1
        lazytpu.mark_step()
        gc.collect()
        seen.add(lazytpu.metrics()["live_bytes"])
    assert max(seen) - min(seen) <= x.numel() * 4


def test_op_without_a_rule_is_refused_at_the_call() -> None:
    library = torch.library.Library("lazytpu_test", "FRAGMENT")
    library.define("unknown(Tensor x) -> Tensor")
    x = on_tpu(3)
    y = x + 1
    with pytest.raises(NotImplementedError, match=r"lazytpu_test\.unknown") as caught:
        torch.ops.lazytpu_test.unknown(x)
    assert "@rule(" in str(caught.value)
    assert y.tolist() == [2.0, 2.0, 2.0]


def test_failing_rule_names_op_and_line_and_loses_only_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.aten import registry

    def broken(b: object, self: object) -> object:
        raise ValueError("no such thing")

    x = on_tpu(5)
    kept = x * 2
    lazytpu.mark_step()
    rule = registry.RULES["aten.atanh.default"]
    monkeypatch.setitem(registry.RULES, "aten.atanh.default", replace(rule, function=broken))
    lost = (x / 2).atanh()
    with pytest.raises(RuntimeError, match=r"aten.atanh.default at .*test_cutter.py:\d+.*no such thing"):
        lazytpu.mark_step()
    with pytest.raises(RuntimeError, match="atanh"):
        lost.cpu()
    with pytest.raises(RuntimeError, match="atanh"):
        lost + 1
    assert kept.tolist() == [2.0] * 5
    assert (x + 1).tolist() == [2.0] * 5


def test_index_out_of_range_is_reported_with_its_line_at_the_next_read() -> None:
    table, index = on_tpu(4, 3), torch.tensor([1, 9]).to("tpu")  # a shape that no other test records first
    row = torch.nn.functional.embedding(index, table)
    lazytpu.mark_step()
    with pytest.raises(IndexError, match=r"embedding.*test_cutter.py"):
        row.cpu()
    assert (table + 1).sum().item() == 24.0


def test_shape_errors_are_raised_by_the_call() -> None:
    a = on_tpu(2, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        a @ a
    assert (a @ a.t()).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        on_tpu(3) + torch.ones(3)
    assert (on_tpu(3) + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]


def test_long_trace_is_cut_with_a_warning_at_its_line() -> None:
    x = on_tpu(2)

    def count(x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x + 1
        return x

    with lazytpu.options(trace_limit=20), pytest.warns(UserWarning, match=r"without a cut.*test_cutter.py"):
        x = count(x)
    assert x.tolist() == [51.0, 51.0]


def test_float32_matmul_precision_is_part_of_the_key() -> None:
    x = on_tpu(8, 8)
    texts = []
    try:
        for precision in ("highest", "medium", "highest"):
            torch.set_float32_matmul_precision(precision)
            x @ x
            y = x @ x
            lazytpu.mark_step()
            texts.append(lazytpu.graphs()[-1].stablehlo())
            assert float(y[0, 0]) == 8.0
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "HIGHEST" in texts[0]
    assert "HIGHEST" not in texts[1]


def test_errors_keep_no_memory_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracebacks hold frames with tensors, so none may be kept or be part of a cycle (R4)."""
    from lazytpu.aten import registry

    def broken(b: object, self: object) -> object:
        raise ValueError("no such thing")

    rule = registry.RULES["aten.atanh.default"]
    monkeypatch.setitem(registry.RULES, "aten.atanh.default", replace(rule, function=broken))

    def fail() -> torch.Tensor:
        big = on_tpu(128, 128)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            big @ on_tpu(3, 3)
        lost = (big * 2).atanh()
        for read in (lazytpu.mark_step, lost.cpu, lambda: lost + 1):
            with pytest.raises(RuntimeError, match="no such thing"):
                read()
        return lost

    gc.collect()
    before = lazytpu.metrics()["live_bytes"]
    gc.disable()
    try:
        lost = fail()
        assert lazytpu.metrics()["live_bytes"] == before
    finally:
        gc.enable()
    assert lost.shape == (128, 128)


def test_module_buffer_that_is_no_leaf_can_be_an_input() -> None:
    module = torch.nn.Module()
    weight = torch.nn.Parameter(on_tpu(3))
    module.register_buffer("doubled", weight * 2)
    y = module.doubled.exp() - 1
    lazytpu.mark_step()
    assert y.shape == (3,)
