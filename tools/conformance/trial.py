"""Runs the checks of an entry: all are recorded, cut once, and read. Checks that do not run together run separately."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._internal.opinfo.core import SampleInput

import lazytpu
from tools.conformance.checks import CHECKS
from tools.conformance.compare import UNINITIALISED, Comparison, Mismatch
from tools.conformance.entries import Entry
from tools.conformance.errors import refusals
from tools.conformance.rows import Row
from tools.conformance.samples import Call, Placed, call_of, describe, tensors


class Trial:
    """One sample of an entry: its arguments on both devices, and the CPU's result."""

    def __init__(self, entry: Entry, number: int, sample: SampleInput, device: str, position: int = 0):
        self.entry, self.number, self.sample, self.device = entry, number, sample, device
        self.position = position  # among the samples that are run; `number` is that among all that torch has
        self.call = call_of(sample)
        self.host_inputs, self.device_inputs = Placed(self.call, "cpu"), Placed(self.call, device)
        self.host_call = self.host_inputs.take()
        self.reference = self.run(self.host_call)
        self.device_inputs.always_fresh = any(t._version for t in tensors(self.host_call))  # it writes its inputs
        random = entry.info.name in UNINITIALISED or self._varies()
        self.values = not random
        self.same = Comparison(entry.info, entry.dtype, device, self.values, sample.output_process_fn_grad)

    def run(self, call: Call, function: Callable[..., Any] | None = None) -> Any:
        """The op's results, without gradients, from the same state of the generators every time."""
        self.reseed()
        with torch.no_grad():
            return (function or self.entry.info.get_op())(call[0], *call[1], **call[2])

    def reseed(self) -> None:
        """Set both devices' generators to the same state; `torch.manual_seed` would take 2 ms, for absent devices."""
        torch.default_generator.manual_seed(self.entry.start())
        torch.get_device_module(self.device).manual_seed(self.entry.start())

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the CPU's result, or None if it refuses the call."""
        try:
            return function(*args)
        except Exception:  # noqa: BLE001    (a call that the CPU refuses is not run on the device)
            return None

    def _varies(self) -> bool:
        """Whether the CPU's results depend on the seed: then only their metadata can be compared."""
        seed = torch.manual_seed  # which some entries of the database call themselves
        with patch.object(torch, "manual_seed", lambda s: seed(s + 1)), patch.object(self, "reseed", torch.seed):
            again = self.run(self.host_inputs.take())
        pairs = zip(tensors(self.reference), tensors(again), strict=True)
        return not all(x.shape == y.shape and _equal(x, y) for x, y in pairs)


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.layout is not torch.strided:
        x, y = x.to_dense(), y.to_dense()
    return torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)


Chosen = list[tuple[Trial, str]]  # a sample and a check of it
Outcomes = dict[tuple[Trial, str], BaseException | None]  # None: passed


def conduct(entry: Entry, k: int, device: str = "tpu", checks: tuple[str, ...] = (*CHECKS, "errors")) -> Row:
    """Run the checks of an entry on at most k samples."""
    start = time.process_time()
    row = Row(entry.name, str(entry.dtype).removeprefix("torch."), k, entry.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trials = _trials(entry, k, device, row)
        row.samples, row.random = len(trials), not all(t.values for t in trials)
        chosen = [(trial, name) for trial in trials for name in CHECKS if name in checks]
        for (trial, name), error in together(chosen).items():
            row.add(name, trial.number, error, describe(trial.call))
        if "errors" in checks:
            for number, error in refusals(entry, k, device):
                row.add("errors", number, error)
    row.seconds = round(time.process_time() - start, 3)
    return row


def _trials(entry: Entry, k: int, device: str, row: Row) -> list[Trial]:
    trials: list[Trial] = []
    for number, sample in entry.samples(k):
        if not tensors(call_of(sample)) and "device" not in sample.kwargs:
            row.reason = "takes neither a tensor nor a device"
            continue
        try:
            trials.append(Trial(entry, number, sample, device, len(trials)))
        except Exception as error:  # noqa: BLE001
            row.reason = f"the CPU refuses it: {' '.join(str(error).split())[:200]}"
    return trials


def together(chosen: Chosen) -> Outcomes:
    """Run checks in one program. If that cannot be compiled or run, run its halves separately, and so on."""
    outcomes: Outcomes = {}
    recorded = []
    for trial, name in chosen:
        check = CHECKS[name](trial)
        try:
            next(check)
        except StopIteration:
            continue
        except Exception as error:  # noqa: BLE001
            outcomes[trial, name] = error
        else:
            recorded.append((trial, name, check))
    try:
        lazytpu.sync()
    except Exception as error:  # noqa: BLE001
        checks = [(trial, name) for trial, name, _ in recorded]
        if len(checks) < 2:
            return outcomes | dict.fromkeys(checks, error)
        half = len(checks) // 2
        return outcomes | together(checks[:half]) | together(checks[half:])
    for trial, name, check in recorded:
        outcomes[trial, name] = _finish(check)
    # An op that reads a value cuts the trace of all checks, so its failure is theirs, too: run each separately.
    doubtful = [key for key, error in outcomes.items() if error is not None and not isinstance(error, Mismatch)]
    for key in doubtful if len(chosen) > 1 else []:
        outcomes |= together([key])
    return outcomes


def _finish(check: Any) -> BaseException | None:
    try:
        next(check, None)
    except Exception as error:  # noqa: BLE001
        return error
    return None
