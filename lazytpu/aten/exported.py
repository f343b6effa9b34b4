"""An exported and loaded program, as one op (`lazytpu.export.load`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.registry import rule

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@rule("lazytpu.exported.default")
def exported(b: Builder, arguments: list[SSAValue], program: str, results: str) -> list[SSAValue]:
    """The results of the program with the digest `program`."""
    return b.template("exported", arguments, b.out, program=program)
