"""Inputs that must be refused: by the CPU's type of exception, and by the call itself unless it depends on values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tools.conformance.compare import Mismatch
from tools.conformance.entries import Entry
from tools.conformance.samples import Call, Placed, call_of, tensors, tree_map


def refusals(entry: Entry, k: int, device: str) -> Iterator[tuple[int, BaseException | None]]:
    """Yield (number, None or the failure) for at most k of torch's error inputs that the CPU refuses."""
    for number, error_input in entry.error_inputs(k):
        call = call_of(error_input.sample_input)
        expected, _ = refusal(entry, Placed(call, "cpu").take())
        if expected is None:
            continue
        try:
            placed = Placed(call, device).take()
        except ValueError:  # more dimensions than an array of the device can have
            continue
        error, late = refusal(entry, placed)
        yield number, _verdict(entry, call, expected, error, late)


def refusal(entry: Entry, call: Call) -> tuple[Exception | None, bool]:
    """Return the error that the op raises, and whether only a read of its results raises it."""
    called = False
    try:
        result = entry.info.get_op()(call[0], *call[1], **call[2])
        called = True
        for tensor in tensors(result):
            tensor.detach().cpu()
    except Exception as error:  # noqa: BLE001
        return error, called
    return None, False


def _verdict(entry: Entry, call: Call, expected: Exception, error: Exception | None, late: bool) -> Mismatch | None:
    name = type(expected).__name__
    if error is None:
        return Mismatch(f"expected {name} ({_short(expected)}), nothing was raised")
    unsupported = isinstance(error, NotImplementedError) and not isinstance(expected, NotImplementedError)
    if unsupported or not isinstance(error, type(expected)):
        return Mismatch(f"expected {name} ({_short(expected)}), got {type(error).__name__}: {_short(error)}")
    if late and refused_by_metadata(entry, call):
        return Mismatch(f"expected {name} from the call, it came with the read: {_short(error)}")
    return None


def refused_by_metadata(entry: Entry, call: Call) -> bool:
    """Whether shapes and dtypes alone are reason enough."""

    def on_meta(x: Any) -> Any:
        return x.to("meta") if isinstance(x, torch.Tensor) else x

    try:
        meta_call: Any = tree_map(on_meta, call)
        entry.info.get_op()(meta_call[0], *meta_call[1], **meta_call[2])
    except NotImplementedError:
        return False
    except Exception:  # noqa: BLE001
        return True
    return False


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]
