"""The model of a chip compared with libtpu's report of five steps, as `make calibration` stored it."""

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
    figures = KNOWN[name]
    ratio, ranks, ranked = compared(figures, by_model(training(name)))
    assert ratio == pytest.approx(figures["ratio"], rel=0.1)
    assert ranks >= figures["ranks"] - 0.05 and ranked == figures["ranked"]


def test_the_errors_of_the_model_are_bounded() -> None:
    assert list(KNOWN) == list(STEPS)
    assert all(0.4 < figures["ratio"] < 1.6 and figures["ranks"] >= 0.7 for figures in KNOWN.values())


def test_the_documentation_has_these_figures() -> None:
    assert "\n".join(row(name, figures) for name, figures in KNOWN.items()) in DOCS.read_text()
