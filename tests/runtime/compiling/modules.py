"""Modules that XLA compiles at once, in seconds, or for longer than any test, and the processes that compile them."""

from __future__ import annotations

import os
from pathlib import Path

from lazytpu.runtime.compiling.helper import CHILD
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir

KIND = "tensor<64xf32>"


def chain(ops: int, first: str = "add") -> ir.Module:
    """A chain of `count` ops on 64 float32; 500 take XLA about a second."""
    lines = [f"%0 = stablehlo.{first} %x, %x : {KIND}"]
    lines += [f"%{i} = stablehlo.{'sine' if i % 3 else 'tanh'} %{i - 1} : {KIND}" for i in range(1, ops)]
    body = "\n".join(lines)
    return parse(f"func.func public @main(%x: {KIND}) -> {KIND} {{ {body} return %{ops - 1} : {KIND} }}")


def endless() -> ir.Module:
    """Thousands of sorts and products, which take XLA minutes."""
    kind, lines, last = "tensor<64x64xf32>", [], "%x"
    for i in range(3000):
        lines.append(
            f"%p{i} = stablehlo.dot_general {last}, %x, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"
        )
        lines.append(
            f'%s{i} = "stablehlo.sort"(%p{i}) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
            "%c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1> "
            f"stablehlo.return %c : tensor<i1> }}) {{dimension = 0 : i64}} : ({kind}) -> {kind}"
        )
        last = f"%s{i}"
    body = "\n".join(lines)
    return parse(f"func.func public @main(%x: {kind}) -> {kind} {{ {body} return {last} : {kind} }}")


def parse(text: str) -> ir.Module:
    with client.mlir_context():
        return ir.Module.parse(text)


def helpers_of(parent: int) -> list[int]:
    """Return the numbers of the helper processes of a process, even if that has ended."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _serves(folder, parent)]


def _serves(folder: Path, parent: int) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        ancestor = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return False
    return words[1:3] == [os.fsencode(CHILD), str(parent).encode()] and ancestor != parent
