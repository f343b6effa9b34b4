"""Every op of torch's database, one sample: forward and backward in float32, or in the first dtype that the CPU
supports.

`make conformance` runs them all, with more samples, at nine dtypes and with more checks. Here the ops are distributed
over `BATCHES` tests, and the ops of one test are compiled together.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tools.conformance import gaps

BATCHES = 48
GAPS = gaps.load()

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own samples warn


def trials_of(name: str, k: int, dtypes: tuple[str, ...] = ()) -> list[Any]:
    """Return at most k samples of an op in float32, or in the first dtype that the CPU supports."""
    from tools.conformance.entries import Entry, table
    from tools.conformance.rows import DTYPES
    from tools.conformance.samples import call_of, tensors
    from tools.conformance.trial import Trial

    info, trials = table()[name], []
    supported = [getattr(torch, d) for d in dtypes or DTYPES if getattr(torch, d) in info.supported_dtypes("cpu")]
    if not supported or name.startswith("jiterator_"):  # float8 only; CUDA only
        return []
    entry = Entry(name, info, supported[0])
    for number, sample in entry.samples(k):
        if tensors(call_of(sample)) or "device" in sample.kwargs:
            trials.append(Trial(entry, number, sample, "tpu"))
    return trials


@pytest.mark.parametrize("batch", range(BATCHES))
def test_ops(batch: int):
    from tools.conformance.entries import table
    from tools.conformance.samples import describe
    from tools.conformance.trial import together

    trials = [trial for name in list(table())[batch::BATCHES] for trial in trials_of(name, 1)]
    outcomes = together([(trial, check) for trial in trials for check in ("forward", "backward")])
    wrong = []
    for (trial, check), error in outcomes.items():
        name, dtype = str(trial.entry).split()
        if error is not None and gaps.reason(GAPS, name, dtype, check) is None:
            wrong.append(f"{trial.entry} {check} of ({describe(trial.call)}): {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {len(outcomes)} checks:\n" + "\n".join(wrong)


@pytest.mark.parametrize("gap", [g for g in GAPS if g.raises], ids=lambda gap: gap.ops)
def test_missing_op_raises_not_implemented_error(gap: gaps.Gap):
    """An op that lazytpu lacks raises NotImplementedError with its name. Otherwise remove its gap."""
    from tools.conformance.checks import CHECKS
    from tools.conformance.entries import table
    from tools.conformance.trial import together

    names = [name for name in table() if re.fullmatch(gap.ops, name)]
    assert names, f"no op of the database is called {gap.ops}"
    for name in names:
        checks = [check for check in gap.checks or CHECKS if check in CHECKS]
        outcomes = together([(trial, check) for trial in trials_of(name, 4, gap.dtypes) for check in checks])
        said = {str(error) for error in outcomes.values() if isinstance(error, NotImplementedError)}
        assert any(gap.raises in message for message in said), f"{name} raises no NotImplementedError: {outcomes}"
