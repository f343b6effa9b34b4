"""The model of a chip beside libtpu's report of five steps, as `make calibration` wrote it down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inspection.step.calibration import FILE, by_model, compared, row
from tests.inspection.step.steps import STEPS, training

KNOWN = json.loads(FILE.read_text())
DOCS = Path(__file__).resolve().parents[3] / "docs/inspecting.md"


@pytest.mark.parametrize("name", STEPS)
def test_the_model_is_as_near_to_libtpu_as_it_was(name: str) -> None:
    told = KNOWN[name]
    ratio, ranks, ranked = compared(told, by_model(training(name)))
    assert ratio == pytest.approx(told["ratio"], rel=0.1)
    assert ranks >= told["ranks"] - 0.05 and ranked == told["ranked"]


def test_how_near_that_is() -> None:
    assert list(KNOWN) == list(STEPS)
    assert all(0.4 < told["ratio"] < 1.6 and told["ranks"] >= 0.7 for told in KNOWN.values())


def test_the_documentation_says_so() -> None:
    assert "\n".join(row(name, told) for name, told in KNOWN.items()) in DOCS.read_text()
