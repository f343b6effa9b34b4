"""The programs that the judge compiles: a step's programs before the passes, and pipelines without one pass."""

from __future__ import annotations

import numpy as np
import torch

import lazytpu
from lazytpu.ir.module import replicas_of
from lazytpu.ir.text import parse_module
from lazytpu.lowering.emit import emit
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from lazytpu.runtime.xla.evaluate import evaluate
from tools.judge import cases, measure
from tools.judge.cases import Case

V6E = Target("tpu", "v6e")


def texts(case: Case) -> list[str]:
    with lazytpu.mode("lazy"):
        return measure.programs(case)


def test_step_is_one_program_and_stays_unchanged() -> None:
    losses: list[torch.Tensor] = []

    def make() -> cases.Step:
        step = cases.small_tensors(3, 5)
        losses.append(step())
        return step

    torch.manual_seed(0)
    (text,) = texts(Case("", make))
    assert text.count("lazytpu.successor") == 9, "three parameters with two states each"
    before = losses[0].detach().clone()
    lazytpu.sync()
    assert torch.equal(losses[0].detach().cpu(), before.cpu())


def test_gradients_of_several_devices_are_averaged() -> None:
    (text,) = texts(Case("", lambda: cases.wide(4, 2, 3), distributed=True))
    module = parse_module(text)
    assert replicas_of(module) == 4
    assert text.count("lazytpu.all_reduce") == 1, "DistributedDataParallel has one bucket for so little"
    run_pipeline(module, passes=V6E, verify=True)


def test_parameters_of_several_devices_are_gathered_and_their_gradients_scattered() -> None:
    (text,) = texts(Case("", lambda: cases.residual(True, 4, 3), distributed=True))
    module = parse_module(text)
    assert replicas_of(module) == 4
    assert text.count("lazytpu.all_gather") >= 4, "one for each residual block, at least"
    assert text.count("lazytpu.reduce_scatter") == 4
    run_pipeline(module, passes=V6E, verify=True)


def test_optional_passes_change_a_program() -> None:
    (text,) = texts(Case("", lambda: cases.wide(4, 1, 3), distributed=True))
    pipeline = for_target(V6E)
    assert "overlap-collectives" in measure.optional(V6E)
    assert not any(name.startswith("decompose") for name in measure.optional(V6E))
    assert not measure.changes(text, pipeline, "overlap-collectives"), "too little to reduce"
    assert measure.changes(text, pipeline, "mark-donation")


def test_templates_are_lowered_without_kernels() -> None:
    (text,) = texts(Case("", lambda: cases.packed(2048, 1, 16)))
    module = measure._passed(text, for_target(V6E))
    with_kernels, without_kernels = (measure._stablehlo(module, kernels) for kernels in (True, False))
    assert "tpu_custom_call" in with_kernels and "custom_call" not in without_kernels


def test_op_by_op_compiles_each_record_as_a_program(monkeypatch) -> None:
    asked: list[str] = []
    figures = measure.Figures("", 2.0, 3, 5, 0.0, 1.0)
    monkeypatch.setattr(measure, "_compiled", lambda name, way, text, *_: asked.append(text) or figures)

    def make() -> cases.Step:
        x = torch.full((2, 3), 0.5).to("tpu")
        return lambda: x.sin().sin().exp()

    with lazytpu.mode("lazy"):
        measured = measure.per_op("three", measure.parts(Case("", make), 1), "v6e:2x2")
    assert len(asked) == 2, "equal ops are one program"
    assert (measured.microseconds, measured.ops, measured.temporary, measured.compile_seconds) == (6.0, 9, 5, 2.0)
    x = np.full((2, 3), 0.5, np.float32)
    results = [evaluate(emit(_through(text)), [x])[0] for text in asked]
    np.testing.assert_allclose(np.stack(results), np.stack([np.sin(x), np.exp(x)]), rtol=1e-6)


def _through(text: str):
    module = parse_module(text)
    run_pipeline(module, verify=False)
    return module


def test_sharded_llama_of_2048_tokens_is_one_program():
    with lazytpu.mode("lazy"):
        (program,) = measure.parts(cases.CASES["fsdp2-llama"], 16)
    assert any(record.collective for record in program.records)
