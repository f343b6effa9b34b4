"""The order in which a module goes through the passes: what all targets share, and where the others stand."""

from __future__ import annotations

from collections.abc import Mapping

PHASES: Mapping[str, str] = {
    "recorded": "ops are as recorded; coarse ones that never have a kernel there are taken apart",
    "simplify": "ops are as recorded, without duplicates; what a pass leaves here is brought into canonical form next",
    "patterns": "ops are in canonical form: chains of them become one coarse op",
    "layout": "all ops are there: orders of dimensions, padding, how values are stored",
    "cluster": "parts of the function become functions of their own",
    "collectives": "communication between devices is bucketed and ordered",
    "final": "coarse ops that have no kernel are taken apart; next, arguments give their memory to results",
}
"Where in the pipeline a pass may stand, in order, and what holds there."

# dce first: what a trace recorded and nobody reads need not be simplified. cse before canonicalize, so that a value
# used by equal expressions counts one user; and after it, because canonical forms are equal more often.
ORDER = (
    "dce", "<recorded>", "cse", "constant-folding", "<simplify>", "canonicalize", "cse", "dce",
    "<patterns>", "<layout>", "<cluster>", "<collectives>", "<final>", "mark-donation",
)  # fmt: skip
"The passes that every program goes through, by name, and the phases, in angle brackets."
