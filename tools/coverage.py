"""Lists how lazytpu expresses each ATen overload.

    python tools/coverage.py            the core ATen op set
    python tools/coverage.py --all      every overload of aten
    python tools/coverage.py --missing  only those that nothing expresses

An overload has a rule, or is the in-place or out= form of an op with a rule, or is a view (which records nothing), or
has a kernel in the frontend (a read to the host, a copy), or is expanded by torch's decomposition. The ops of a
decomposition may themselves be missing: that is detected when the op is first compiled.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import cache

import torch
from rich.table import Table

from lazytpu.aten import dispatch, registry
from lazytpu.aten.schema import functional, signature
from lazytpu.frontend.activation import activate
from lazytpu.frontend.torch_private import has_kernel, op_names
from lazytpu.inspection.highlight import console


@cache
def dispatched() -> frozenset[str]:
    """Names of all overloads that the dispatcher knows; TorchScript has more, which are never recorded."""
    return frozenset(op_names())


def overloads(core_only: bool) -> Iterator[torch._ops.OpOverload]:
    """Yield all overloads of aten that the dispatcher knows, or only those tagged `core`, by name."""
    for packet in sorted(dir(torch.ops.aten)):
        packet_op = getattr(torch.ops.aten, packet)
        if not hasattr(packet_op, "overloads"):
            continue
        for name in packet_op.overloads():
            op = getattr(packet_op, name)
            if op.name() in dispatched() and (not core_only or torch.Tag.core in op.tags):
                yield op


def how(op: torch._ops.OpOverload) -> str:
    """ "rule", "functional form", "view", "kernel", "decomposition" or "missing"."""
    if str(op) in registry.load():
        return "rule"
    counterpart = functional(op) if signature(op).written else None
    if counterpart is not None and counterpart.name() in dispatched() and dispatch.supported(counterpart):
        return "functional form"
    if signature(op).views:
        return "view"
    if has_kernel(op.name(), "PrivateUse1"):
        return "kernel"
    return "decomposition" if dispatch.decomposition(op) is not None else "missing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every overload of aten, not only the core set")
    parser.add_argument("--missing", action="store_true", help="list only what is missing")
    asked = parser.parse_args()
    activate()
    table, counts = Table("overload", "expressed by", "in"), Counter[str]()
    for op in overloads(core_only=not asked.all):
        kind = how(op)
        counts[kind] += 1
        if not asked.missing or kind == "missing":
            rule = registry.load().get(str(op))
            table.add_row(str(op), kind, rule.function.__module__ if rule else "")
    out = console()
    out.print(table)
    out.print(", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()))


if __name__ == "__main__":
    main()
