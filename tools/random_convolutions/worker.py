"""A child process: runs cases on the CPU and on "tpu", and reports the differences."""

from __future__ import annotations

import random
import sys
import warnings
from dataclasses import replace
from typing import Any

import torch

from tools.children import alive, say, start_child
from tools.conformance.compare import TOLERANCES
from tools.random_convolutions.cases import Case, draw

MODES = ("fused",) * 8 + ("strict", "debug")


def outcome(case: Case, device: str) -> Any:
    """The results, or the type of the error."""
    try:
        return case.run(device)
    except (RuntimeError, ValueError, IndexError, NotImplementedError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def difference(got: Any, want: Any) -> str | None:
    """How two outcomes differ; None where they agree."""
    if isinstance(got, str) or isinstance(want, str):
        same = isinstance(got, str) and isinstance(want, str) and got.split(":")[0] == want.split(":")[0]
        said = [outcome if isinstance(outcome, str) else "ran" for outcome in (want, got)]
        return None if same else f"cpu {said[0]}, tpu {said[1]}"
    (got, strides), (want, expected) = got, want
    if strides != expected and want[0].numel() > 1:
        return f"strides {strides}, expected {expected}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if (g.dtype, g.shape) != (w.dtype, w.shape):
            return f"result {i}: {g.dtype}{list(g.shape)}, expected {w.dtype}{list(w.shape)}"
        rtol, atol = TOLERANCES[w.dtype]
        scale = max(1.0, w.double().abs().nan_to_num(0, 0, 0).max().item() if w.numel() else 0.0)
        try:
            torch.testing.assert_close(g, w, rtol=rtol, atol=max(atol, rtol) * scale, equal_nan=True)
        except AssertionError as error:
            return f"result {i}: {' '.join(str(error).split())}"
    return None


def judged(case: Case, got: Any, want: Any) -> str | None:
    """How the device's outcome differs from the CPU's. In half precision also from the CPU's in float32: it lacks
    kernels that the device has, and some are wrong (a bfloat16 `conv_transpose3d` of channels_last, torch 2.13)."""
    message = difference(got, want)
    refused = isinstance(want, str) and not want.startswith("NotImplementedError")
    if message is None or refused or case.dtype not in (torch.float16, torch.bfloat16):
        return message
    results, strides = replace(case, dtype=torch.float32).run("cpu")
    rounded = [result.to(case.dtype) for result in results]
    return difference(got, (rounded, strides if isinstance(want, str) else want[1]))


def main(numbers: list[int], address_space: int) -> None:
    warnings.simplefilter("ignore")
    import lazytpu

    start_child(address_space)
    # Each program is compiled, and whole: the host and quick programs would leave XLA's passes out.
    with lazytpu.options(on_host=False, background_compile=300):
        for number in numbers:
            case = draw(number)
            say(number=number, stage="cpu", text=str(case))
            want = outcome(case, "cpu")
            say(number=number, stage="tpu")
            mode = random.Random(number).choice(MODES)
            with lazytpu.mode(mode):
                got = outcome(case, "tpu")
                alive("tpu")
            say(number=number, stage="done", mode=mode, difference=judged(case, got, want))


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1].split(",")], int(sys.argv[2]))
