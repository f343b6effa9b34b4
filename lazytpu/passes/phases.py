"""The order of the passes: the passes of every target, and the phases in which a target's own passes run."""

from __future__ import annotations

from collections.abc import Mapping

PHASES: Mapping[str, str] = {
    "recorded": "ops are as recorded; coarse ops that have no kernel on the target are decomposed",
    "simplify": "ops are as recorded, without duplicates; canonicalization follows",
    "patterns": "ops are in canonical form; chains of them are fused into coarse ops",
    "layout": "no more ops are fused; dimension orders, padding and storage are chosen",
    "cluster": "parts of the function are outlined as functions of their own",
    "collectives": "communication between devices is bucketed and ordered",
    "final": "remaining coarse ops without a kernel are decomposed; donation of arguments follows",
}
"The phases in which a pass may run, in order, and the state of the module in each."

# dce first, so that ops whose results nobody reads are not simplified. cse before canonicalize, so that equal
# expressions count as one user of a value; and again after it, because canonical forms are equal more often.
ORDER = (
    "dce", "<recorded>", "cse", "constant-folding", "<simplify>", "canonicalize", "cse", "dce",
    "<patterns>", "<layout>", "<cluster>", "<collectives>", "<final>", "mark-donation",
)  # fmt: skip
"""The passes of every program, by name, and the phases between them, in angle brackets."""
