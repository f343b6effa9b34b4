"""Collectives in HLO: recognize them, count the participating chips, and estimate the time on the links between
chips."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lazytpu.inspection.tpu.hlo import Computation, Hlo, Op
from lazytpu.inspection.tpu.links import Links, one_way
from lazytpu.passes.generations import Generation

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
_KIND = re.compile("|".join(sorted(KINDS, key=len, reverse=True)))
LATENCY = 1.5e-6
"Seconds from the start of a collective to its first byte. An assumption: nobody publishes it."
NETWORK_LATENCY = 2e-5
"The same between slices, with the copies from and to the hosts. An assumption as well."


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: its kind, the number of devices, and the bytes for `seconds`: the size of the result, or of the
    operands where it is larger (reduce-scatter, all-to-all)."""

    kind: str
    members: int
    payload: int
    group: tuple[int, ...] | None = field(default=None, compare=False)
    "The devices of a group, if the op names them."
    across: bool = False
    "Whether the members are slices, which the data center's network connects."


def across_slices(op: Op) -> Collective | None:
    """Return the collective between slices whose result an op receives; None for other ops.

    The compiler splits a collective of several slices: each slice exchanges its part, and each chip then exchanges an
    equal share with the same chip of the other slices, which its host sends and receives.
    """
    kind = op.frontend.get("_xla_megascale_transfer_type") if op.opcode == "recv" else None
    if kind is None:
        return None
    slices = len(_numbers(op.frontend["_xla_megascale_target"]))
    received = op.results[0].bytes
    payload = received * slices if kind == "REDUCE_SCATTER" else received
    return Collective(kind.lower().replace("_", "-"), slices, payload, across=True)


def _numbers(target: str) -> list[int]:
    """Return the first list of a text such as "{1,2}x{0:15}", with ranges resolved."""
    ranges = re.findall(r"(\d+)(?::(\d+))?", target.partition("}")[0])
    return [number for first, last in ranges for number in range(int(first), int(last or first) + 1)]


def collective(hlo: Hlo, computation: Computation, op: Op, devices: int, *, inner: bool = False) -> Collective | None:
    """Return the collective that an op is, starts, or contains as a custom fusion; None for other ops. An op inside of
    these (`inner`) may also call it.

    Without groups, all devices take part.
    """
    if kind := _KIND.match(op.opcode):
        return _carried(kind[0], computation, op, op.group, devices)
    if not (op.opcode.startswith("async-") or op.fusion == "kCustom" or (inner and op.opcode == "call")):
        return None
    called = [hlo.computations[name] for name in op.called]
    nested = (collective(hlo, body, inner_op, devices, inner=True) for body in called for inner_op in body.ops)
    inside = next(filter(None, nested), None)
    # The compiler splits an all-reduce where each device can continue with its part. Each half is a fusion that
    # contains the whole collective. Only its name tells which half it is; its own operands and results are the data
    # sent.
    named = re.match("all-reduce-scatter|all-gather|all-reduce", op.called[0]) if op.called else None
    half = named and named[0].replace("all-reduce-scatter", "reduce-scatter")
    if half is None or (inside is not None and inside.kind == half):
        return inside
    return _carried(half, computation, op, inside.group if inside else op.group, devices)


def _carried(kind: str, computation: Computation, op: Op, group: tuple[int, ...] | None, devices: int) -> Collective:
    """Return the collective of the operands and results of an op."""
    operand_bytes = sum(array.bytes for name in op.operands for array in computation.by_name[name].results)
    result_bytes = [array.bytes for array in op.results]
    if kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all") and operand_bytes:
        payload = operand_bytes
    elif op.opcode.endswith("-start") and kind != "all-reduce":
        payload = max(result_bytes, default=0)  # the type includes the operand
    else:
        payload = sum(result_bytes)
    if kind == "collective-permute":
        return Collective(kind, 2, payload)
    members = group or tuple(range(devices))
    return Collective(kind, len(members), payload, members)


def chain(hlo: Hlo, op: Op) -> tuple[str, str] | None:
    """Return ("start" or "done", name of the chain) for a fusion that starts or ends a reduction spread over several
    fusions; None for other ops."""
    end = re.match("async-collective-(start|done)", op.name) if op.opcode == "fusion" else None
    for inner_op in hlo.computations[op.called[0]].ops if end else ():
        if end and "chain_id" in inner_op.frontend:
            return end[1], f"chain {inner_op.frontend['chain_id']}"
    return None


def seconds(kind: str, nbytes: float, devices: int, facts: Generation, links: Links | None = None) -> float:
    """Return the seconds of a collective for a result (for reduce-scatter and all-to-all, an operand) of `nbytes`.

    A group uses the `links` of all its dimensions; without these, a ring with a link in each direction. A permutation
    uses one link in one direction.
    """
    if devices <= 1:
        return 0.0
    if kind == "collective-permute":
        return nbytes / one_way(facts) + LATENCY
    links = Links(2 * one_way(facts), 0) if links is None else links
    return _sent(kind, devices) * nbytes / links.bandwidth + LATENCY + links.latency


def seconds_across(kind: str, nbytes: float, slices: int, facts: Generation) -> float:
    """Return the seconds of the same between slices, over a device's share of the data center's network."""
    return _sent(kind, slices) * nbytes / (facts.dcn_bandwidth / facts.devices) + NETWORK_LATENCY


def _sent(kind: str, members: int) -> float:
    """Return the part of a collective's bytes that each member sends."""
    share = (members - 1) / members
    return {"all-reduce": 2 * share, "all-to-all": share / 2, "ragged-all-to-all": share / 2}.get(kind, share)
