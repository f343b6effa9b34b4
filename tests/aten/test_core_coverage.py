"""Every overload of ATen's core set, called directly, gives the CPU's values, dtypes, shapes and strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import lazytpu
from tests.aten.core_samples import SAMPLES, core_overloads, key

BATCHES = 16
"""The number of tests that share the ops: the ops of one test are compiled together."""
CORE = {key(op): op for op in core_overloads()}
# Ops with undetermined values: dtype, shape and strides are compared, and the range of random values.
RANGES = {
    "rand": lambda x: x.min() >= 0 and x.max() < 1,
    "randn": lambda x: x.abs().max() < 6 and x.std() > 0,
    "randperm": lambda x: torch.equal(x.sort().values, torch.arange(len(x))),
    "empty.memory_format": lambda x: True,
    "empty_strided": lambda x: True,
}
# Computed by torch itself, from the tensor's metadata.
METADATA = {"sym_is_contiguous", "sym_numel", "sym_size.int", "sym_storage_offset", "sym_stride.int"}
# The number of significant results; the others are for the backward op, with sizes that depend on the CPU kernel.
COUNTED = {"_embedding_bag": 1}


def moved(value: Any, device: str) -> Any:
    """Return the sample on the device; a view stays a view."""
    if isinstance(value, torch.Tensor):
        base = value._base if value._base is not None else value
        copy = base.clone().to(device)
        return copy if base is value else copy.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list):
        return [moved(v, device) for v in value]
    return value


def flat(results: Any) -> list[Any]:
    if isinstance(results, list | tuple):
        return [f for r in results for f in flat(r)]
    return [results]


def same(got: Any, want: Any, name: str) -> None:
    if not isinstance(want, torch.Tensor):
        assert got == want
        return
    assert got.device.type == "tpu"
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.numel():
        assert got.stride() == want.stride(), f"{name}: strides {got.stride()}, expected {want.stride()}"
    if name in RANGES:
        assert RANGES[name](got.cpu())
    else:
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_every_core_overload_has_a_sample() -> None:
    assert CORE.keys() == SAMPLES.keys()
    assert len(CORE) >= 190


def compare(name: str) -> list[Callable[[], None]]:
    """Call the op on both devices, and return a function that reads and compares the results."""
    op, comparisons = CORE[name], list[Callable[[], None]]()
    for args, kwargs in SAMPLES[name]:
        devices = {
            d: ([moved(a, d) for a in args], {k: moved(v, d) for k, v in kwargs.items()}) for d in ("cpu", "tpu")
        }
        if not any(isinstance(v, torch.Tensor) for v in flat([list(args), list(kwargs.values())])):
            devices["tpu"][1]["device"] = "tpu"
        want, got = (op(*devices[d][0], **devices[d][1]) for d in ("cpu", "tpu"))
        if name == "native_dropout":
            comparisons.append(partial(dropped, devices["tpu"][0][0], *got))
            continue
        results = list(zip(flat(got), flat(want), strict=True))[: COUNTED.get(name)]
        written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        names = [a.name for a in op._schema.arguments]
        for target in written:
            at = names.index(target)
            results.append(
                tuple(devices[d][1][target] if target in devices[d][1] else devices[d][0][at] for d in ("tpu", "cpu"))
            )
        comparisons += [partial(same, result, expected, name) for result, expected in results]
    return comparisons


def dropped(x: torch.Tensor, kept: torch.Tensor, mask: torch.Tensor) -> None:
    assert (kept.dtype, kept.shape, mask.dtype, mask.shape) == (x.dtype, x.shape, torch.bool, x.shape)
    torch.testing.assert_close(kept.cpu(), x.cpu() * mask.cpu() * 2)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_core(batch: int) -> None:
    wrong: list[str] = []
    of_batch = {name: compare(name) for name in sorted(CORE)[batch::BATCHES]}
    for name, comparisons in of_batch.items():
        try:
            for comparison in comparisons:
                comparison()
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(METADATA))
def test_metadata_agrees_with_torch(name: str) -> None:
    """Reading sizes records nothing."""
    x = torch.ones(2, 3, device="tpu") + 1
    before = lazytpu.metrics()
    args = (x, 0) if len(CORE[name]._schema.arguments) == 2 and name.endswith("int") else (x,)
    CORE[name](*args)
    assert lazytpu.metrics() == before
    assert torch.equal(x.cpu(), torch.full((2, 3), 2.0))
