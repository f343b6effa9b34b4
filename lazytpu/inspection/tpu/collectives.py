"""Collectives: which op is one, how many chips take part, and how long the links between chips are busy with it."""

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
    """One collective: its kind, how many devices take part, and the bytes that `seconds` reckons with: of the result,
    and of operands where these are larger (reduce-scatter, all-to-all)."""

    kind: str
    members: int
    payload: int


def collective(hlo: Hlo, computation: Computation, op: Op, devices: int) -> Collective | None:
    """The collective that an op of a computation is, starts, or holds as a custom fusion; None for another op. Of one
    that names no groups, all devices take part."""
    found = _found(hlo, computation, op)
    if found is None:
        return None
    home, each = found.computation.by_name, found.op
    given = sum(part.bytes for name in each.operands for part in home[name].results)
    parts = [part.bytes for part in each.results]
    if found.kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all") and given:
        payload = given
    elif each.opcode.endswith("-start") and found.kind != "all-reduce":
        payload = max(parts, default=0)  # the type holds the operand as well
    else:
        payload = sum(parts)
    members = 2 if found.kind == "collective-permute" else found.groups.groups or devices
    return Collective(found.kind, members, payload)


@dataclass(frozen=True, slots=True)
class _Found:
    """The op with a collective's operands and results, where it stands, and the op that names the groups."""

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
        for each in called.ops:
            inside = inside or _found(hlo, called, each, inner=True)
    # The compiler takes an all-reduce apart where each device can go on with a part of it. Each half is a fusion that
    # holds the whole; its name alone tells which half it is, and its own operands and results what travels.
    named = re.match("all-reduce-scatter|all-gather|all-reduce", op.called[0]) if op.called else None
    if named is None:
        return inside
    half = named[0].replace("all-reduce-scatter", "reduce-scatter")
    if inside is not None and inside.kind == half:
        return inside
    return _Found(half, computation, op, inside.groups if inside else op)


def chain(hlo: Hlo, op: Op) -> tuple[str, str] | None:
    """("start" or "done", which) of a fusion that begins or ends a reduction that the fusions between the two go on
    with, each for a while; None for another op."""
    end = re.match("async-collective-(start|done)", op.name) if op.opcode == "fusion" else None
    for each in hlo.computations[op.called[0]].ops if end else ():
        if end and "chain_id" in each.frontend:
            return end[1], f"chain {each.frontend['chain_id']}"
    return None


def seconds(kind: str, nbytes: float, devices: int, facts: Generation) -> float:
    """How long a ring takes for a result (of reduce-scatter and all-to-all: an operand) of so many bytes. A ring uses a
    link in each direction; a permutation one link in one direction."""
    if devices <= 1:
        return 0.0
    one_way = facts.ici_bandwidth / facts.ici_links / 2
    share = (devices - 1) / devices
    wire = {"all-reduce": 2 * share, "all-to-all": share / 2, "ragged-all-to-all": share / 2, "collective-permute": 2.0}
    return wire.get(kind, share) * nbytes / (2 * one_way) + LATENCY
