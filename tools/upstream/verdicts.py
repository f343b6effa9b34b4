"""The verdict on a test, and the reason of a refusal, a fault, a skip or an incomparable test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REFUSALS = {
    "complex32": r"complex32|ComplexHalf|chalf|c32\b",
    "quantised": r"QuantizedPrivateUse1|affine_quantized|quint8|qint8|qint32|quantize",
    "CSR": r"SparseCsrPrivateUse1|[Ss]parse_?(csr|csc|bsr|bsc|compressed)|to_sparse_csr",
    "strided nested": r"NestedTensorPrivateUse1|strided nested",
}
"""Patterns of the exception's first line: features that docs/dtypes.md and docs/sparse.md exclude."""
LATE = "errors that values decide, raised at the read"
OF_THE_CPU = r"only implemented on CPU tensors|_ConvBackend\.Overrideable"
"""Failures that no device outside of torch can avoid: `map_` and similar ops call Python for each element on the CPU
alone, and torch's choice among its own convolution kernels is `Overrideable` for each such device."""
OF_OTHERS = {
    r"test_stable_sort_against_numpy.* at least two devices": 'an index on the CPU for any device but "cuda"',
    r"test_grad_scaling_state_dict.* False is not true": 'a `torch.FloatTensor` on any device but "cuda"',
    r"test_grad_scaler_deprecated_warning.*torch\.cpu\.amp": 'its own `amp.GradScaler` of any device but "cuda"',
    r"all\(a == b for a, b in zip\([pg]_cdatas_before": "a tensor's C++ object that stays when the device changes",
}
"""Patterns of a test's name, its exception and the traceback, and the features that such tests require and only the
CPU or CUDA have."""


FAULTS = {
    r"test_lazy_clone|test_parallel_cow": "copy-on-write storages (`torch._lazy_clone`): a value has no address that "
    "two storages could share, and is never written",
}
"""Patterns of names of tests that are known to fail, and their requirements."""


def verdict(row: Mapping[str, Any]) -> str:
    """skipped, passed, refused, failed, timed out, crashed, or incomparable."""
    if row["stage"] == "tpu" and row.get("control") == "passed":
        return "timed out" if row["end"] == "hangs" else "crashed"
    if row["stage"] == "tpu":
        return "incomparable"
    if row["status"] == "skipped":
        return "skipped"
    if row.get("control") != "passed" or row.get("of_device_names") or re.search(OF_THE_CPU, row["reason"]):
        return "incomparable"
    if row["status"] == "failed" and of_others(row):
        return "incomparable"
    if row["status"] == "passed":
        return "passed"
    return "refused" if kind_of_refusal(row) else "failed"


def of_others(row: Mapping[str, Any]) -> str | None:
    """Return the feature that a test requires and only the CPU and CUDA have; None for most tests."""
    if row.get("of_device_names"):
        return 'behaviour of CUDA on any device that is not named "cpu"'
    said = f"{row.get('test', '')} {row['reason']}"
    return next((expected for pattern, expected in OF_OTHERS.items() if re.search(pattern, said)), None)


def kind_of_refusal(row: Mapping[str, Any]) -> str | None:
    """Which announced refusal a failure is. An error is late if the test passes in debug mode."""
    if row.get("late"):
        return LATE
    said = row["reason"].partition("\n")[0]
    return next((kind for kind, pattern in REFUSALS.items() if re.search(pattern, said)), None)


def kind_of_fault(row: Mapping[str, Any]) -> str | None:
    """Return the requirement that a failed test is known for; None for other tests."""
    return next((requires for pattern, requires in FAULTS.items() if re.search(pattern, row.get("test", ""))), None)


def reason_of_skip(reason: str) -> str:
    """The reason without the parts that differ from test to test."""
    reason = " ".join(reason.split())
    return re.sub(r"Only runs on .*", lambda found: found.group().replace("'", ""), reason)[:60]
