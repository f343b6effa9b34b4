"""Line-based reading of MLIR text: enough to count and compare modules of the dialect or StableHLO without parsing them
(xDSL's parser takes 0.35 ms per op)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

_STRING = r'"(?:[^"\\]|\\.)*"'
_IN_LOCATION = rf'(?:[^()"]|{_STRING})'
_LOCATION = re.compile(rf"\s*\bloc\((?:{_IN_LOCATION}|\({_IN_LOCATION}*\))*\)")
_LOCATION_ALIAS = re.compile(r"^#loc\d* = ")
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_OP = re.compile(r'^\s*(?:%[^=]*=\s*)?"?((?:[a-z][\w]*\.)?[a-z][\w.]*)"?[\s(]')
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-z]+)(\d*)(?:<[a-z]+(\d+)>)?")
_ARGUMENT = re.compile(rf"(%[\w.$-]+)\s*:\s*(tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>)\s*(\{{(?:[^{{}}\"]|{_STRING})*\}})?")
_NOT_COUNTED = frozenset(
    ("builtin.module", "module", "func.func", "func.return", "return", "stablehlo.return", "lazytpu.yield", "cond")
)
_REGION = re.compile(r"\b(?:then|else|while|do)\(([^()]*)\) \{$")
_ALIAS = ("lazytpu.alias", "tf.aliasing_output")


def without_locations(text: str) -> list[str]:
    """Return the lines of a text without source locations."""
    lines = (line for line in text.splitlines() if not _LOCATION_ALIAS.match(line))
    return [_LOCATION.sub("", line).rstrip() for line in lines]


def names(line: str) -> tuple[list[str], list[str]]:
    """Return the values that a line defines, and the values that it uses.

    A line defines the results of an op, or the arguments of a function, block or region that begins there.
    """
    if "func.func" in line or line.lstrip().startswith("^"):
        return _VALUE.findall(line), []
    region = _REGION.search(line)
    head, arguments = (line[: region.start()], _VALUE.findall(region[1])) if region else (line, [])
    results = _VALUE.findall(head.split(" = ", 1)[0]) if " = " in head else []
    return results + arguments, _VALUE.findall(head)[len(results) :]


def skeleton(line: str) -> str:
    """Return a line without the names of values."""
    return _VALUE.sub("%", line)


def kind_of(line: str) -> str | None:
    """Return the op of a line ("lazytpu.add"); None for a brace or an empty line."""
    match = _OP.match(line)
    return match[1] if match else None


def tensor_bytes(text: str) -> int:
    """Return the bytes of all tensor types in a text, with one byte per boolean."""
    return sum(_sizes(text))


def _sizes(text: str) -> list[int]:
    return [_bytes(*groups) for groups in _TENSOR.findall(text)]


def _bytes(dims: str, element: str, bits: str, part_bits: str) -> int:
    bits_of_element = 2 * int(part_bits) if element == "complex" else int(bits)
    return max(bits_of_element // 8, 1) * prod(int(dim) for dim in dims.split("x") if dim)


@dataclass(frozen=True)
class ModuleStats:
    """The bytes of each argument of a module, of each argument that a result overwrites, of each result, and of the
    results of each op, by kind. They are the sizes of logical arrays, without padding."""

    arguments: list[int]
    aliased: list[int]
    results: list[int]
    ops: dict[str, list[int]]


def arguments(text: str) -> list[tuple[str, bool]]:
    """Return the type of each argument of `@main`, and whether a result overwrites it."""
    listed = _ARGUMENT.findall(_signature(text.splitlines()))
    return [(tensor, any(name in re.sub(_STRING, "", of) for name in _ALIAS)) for _, tensor, of in listed]


def _signature(lines: list[str]) -> str:
    return next((line for line in lines if "@main(" in line), "")


def stats(text: str) -> ModuleStats:
    """Count arguments, results and ops in the text of a module. Raises ValueError if it has no function @main."""
    lines = without_locations(text)
    signature = _signature(lines)
    if not signature:
        raise ValueError("expected the text of a module with a function @main")
    sizes = [(tensor_bytes(tensor), is_aliased) for tensor, is_aliased in arguments(signature)]
    outputs = signature.rsplit(" -> ", 1)[1] if " -> " in signature else ""
    ops: dict[str, list[int]] = {}
    for kind, size in _ops(lines):
        ops.setdefault(kind, []).append(size)
    aliased = [size for size, is_aliased in sizes if is_aliased]
    return ModuleStats([size for size, _ in sizes], aliased, _sizes(outputs), ops)


def _ops(lines: list[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        kind = kind_of(line)
        if kind is None or kind in _NOT_COUNTED:
            continue
        types = line.rsplit(" -> ", 1)[-1] if " -> " in line else line.rsplit(" : ", 1)[-1]
        yield kind, tensor_bytes(types)
