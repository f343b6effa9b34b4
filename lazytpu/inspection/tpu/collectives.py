"""Collectives in HLO: recognize them, count the participating chips, and estimate the time on the links between
chips."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lazytpu.inspection.tpu.hlo import Computation, Hlo, Op
from lazytpu.passes.generations import Generation

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
_KIND = re.compile("|".join(sorted(KINDS, key=len, reverse=True)))
LATENCY = 1.5e-6
"Seconds from the start of a collective to its first byte. An assumption: nobody publishes it."


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: its kind, the number of devices, and the bytes for `seconds`: the size of the result, or of the
    operands where it is larger (reduce-scatter, all-to-all)."""

    kind: str
    members: int
    payload: int


def collective(hlo: Hlo, computation: Computation, op: Op, devices: int) -> Collective | None:
    """Return the collective that an op is, starts, or contains as a custom fusion; None for other ops.

    Without groups, all devices take part.
    """
    carrier = _found(hlo, computation, op)
    if carrier is None:
        return None
    by_name, inner = carrier.computation.by_name, carrier.op
    operand_bytes = sum(array.bytes for name in inner.operands for array in by_name[name].results)
    result_bytes = [array.bytes for array in inner.results]
    if carrier.kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all") and operand_bytes:
        payload = operand_bytes
    elif inner.opcode.endswith("-start") and carrier.kind != "all-reduce":
        payload = max(result_bytes, default=0)  # the type includes the operand
    else:
        payload = sum(result_bytes)
    members = 2 if carrier.kind == "collective-permute" else carrier.groups.groups or devices
    return Collective(carrier.kind, members, payload)


@dataclass(frozen=True, slots=True)
class _Found:
    """The op with a collective's operands and results, its computation, and the op that names the groups."""

    kind: str
    computation: Computation
    op: Op
    groups: Op


def _found(hlo: Hlo, computation: Computation, op: Op, inner: bool = False) -> _Found | None:
    kind = _KIND.match(op.opcode)
    if kind:
        return _Found(kind[0], computation, op, op)
    if not (op.opcode.startswith("async-") or op.fusion == "kCustom" or (inner and op.opcode == "call")):
        return None
    inside = None
    for name in op.called:
        called = hlo.computations[name]
        for inner_op in called.ops:
            inside = inside or _found(hlo, called, inner_op, inner=True)
    # The compiler splits an all-reduce where each device can continue with its part. Each half is a fusion that
    # contains the whole collective. Only its name tells which half it is; its own operands and results are the data
    # sent.
    named = re.match("all-reduce-scatter|all-gather|all-reduce", op.called[0]) if op.called else None
    if named is None:
        return inside
    half = named[0].replace("all-reduce-scatter", "reduce-scatter")
    if inside is not None and inside.kind == half:
        return inside
    return _Found(half, computation, op, inside.groups if inside else op)


def chain(hlo: Hlo, op: Op) -> tuple[str, str] | None:
    """Return ("start" or "done", name of the chain) for a fusion that starts or ends a reduction spread over several
    fusions; None for other ops."""
    end = re.match("async-collective-(start|done)", op.name) if op.opcode == "fusion" else None
    for inner_op in hlo.computations[op.called[0]].ops if end else ():
        if end and "chain_id" in inner_op.frontend:
            return end[1], f"chain {inner_op.frontend['chain_id']}"
    return None


def seconds(kind: str, nbytes: float, devices: int, facts: Generation) -> float:
    """Return the seconds of a ring for a result (for reduce-scatter and all-to-all, an operand) of `nbytes`.

    A ring uses a link in each direction, a permutation one link in one direction.
    """
    if devices <= 1:
        return 0.0
    one_way = facts.ici_bandwidth / facts.ici_links / 2
    share = (devices - 1) / devices
    wire = {"all-reduce": 2 * share, "all-to-all": share / 2, "ragged-all-to-all": share / 2, "collective-permute": 2.0}
    return wire.get(kind, share) * nbytes / (2 * one_way) + LATENCY
