"""The samples: every template has one, and samples that differ by platform are marked."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch

from lazytpu import wiring
from lazytpu.aten.dtypes import NAMES
from lazytpu.doctor.checks import transfers
from lazytpu.doctor.samples import ALIKE, BY_PLATFORM, Given
from lazytpu.engine.compiling.translate import translate
from lazytpu.frontend.activation import activate
from lazytpu.lowering import template as calls
from lazytpu.lowering.templates import registry
from lazytpu.lowering.text import stablehlo_text
from lazytpu.passes.target import Target
from lazytpu.rehearsal.rehearse import rehearse
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir

SAMPLES = {**BY_PLATFORM, **ALIKE}
# Checked by `checks.kernels`; and templates that no torch op is lowered to.
ELSEWHERE = {"flash_attention", "flash_attention_backward", "attention_by_blocks", "attention_by_blocks_backward"}
ELSEWHERE |= {"segment_ids"}
UNUSED = {"betainc"}
COMMUNICATING = {"read_again"}  # of steps of process groups (tests/distributed/test_windows.py)
LOADED = {"exported"}  # a program of the user (tests/exporting)
PLATFORMS = ("cpu", "tpu", "cuda")


def test_every_template_has_a_sample() -> None:
    for family in registry.FAMILIES:
        importlib.import_module(f"lazytpu.lowering.templates.{family}")
    missing = set(registry.TEMPLATES) - set(SAMPLES) - ELSEWHERE - UNUSED - COMMUNICATING - LOADED
    assert not missing, f"lazytpu/doctor/samples.py has no call of torch for {', '.join(sorted(missing))}"
    assert set(SAMPLES) <= set(registry.TEMPLATES)
    assert not set(BY_PLATFORM) & set(ALIKE)


def test_every_device_dtype_is_transferred() -> None:
    assert {getattr(torch, name) for name in transfers.DTYPES} == set(NAMES)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Record (name, operands, parameters) of the lowered templates."""
    lowered: list[tuple[Any, ...]] = []

    def instance(name: str, operands: Any, params: Any, platform: str | None) -> registry.Instance:
        lowered.append((name, operands, params))
        return registry.instance(name, operands, params, platform)

    monkeypatch.setattr(calls, "instance", instance)
    return lowered


def lower(name: str) -> None:
    """Lower the ops that the sample records, without compiling."""
    activate()
    wiring.start()
    programs = rehearse(lambda: SAMPLES[name](Given("tpu")), platform="cpu")
    for program in programs:
        of_trace = (program.records, program.live, program.dead, program.names)
        translate(*of_trace, name=name, bounds_check=False, target=Target("cpu"), platform="cpu")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i % 3 == 0 else pytest.mark.long) for i, name in enumerate(SAMPLES)]
)
def test_sample_calls_its_template_and_marks_platform_differences(name: str, called: list[tuple[Any, ...]]) -> None:
    lower(name)
    calls_of_template = [call for call in called if call[0] == name]
    assert calls_of_template, f"it calls {sorted({call[0] for call in called})}"
    differs = any(_differs(*call) for call in calls_of_template)
    table = "BY_PLATFORM" if differs else "ALIKE"
    assert name in (BY_PLATFORM if differs else ALIKE), f"{name} belongs into {table} of lazytpu/doctor/samples.py"


def _differs(name: str, operands: Any, params: Any) -> bool:
    try:
        return len({_text(registry.instance(name, operands, params, platform)) for platform in PLATFORMS}) > 1
    except NotImplementedError:  # jax has it only on some of them
        return True


def _text(instance: registry.Instance) -> str:
    """Return the module's text with jax's function names and order normalized."""
    with client.mlir_context():
        text = stablehlo_text(ir.Module.parse(instance.bytecode))
    return "\n".join(sorted(re.sub(r"@\w+", "@", text).splitlines()))
