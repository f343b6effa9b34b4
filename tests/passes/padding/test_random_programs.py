"""Random programs at several sizes: the padded program equals the exact programs, or is refused with a reason."""

from __future__ import annotations

import os

from hypothesis import assume, given
from hypothesis import strategies as st

from lazytpu.passes.padding.walk import Refusal
from tests.passes.padding.recipes import ARGUMENTS, LEAST, MOST, Recipe, recipes
from tests.passes.padding.sized import same_at_every_size
from tests.passes.test_semantics import quickly

PROGRAMS = int(os.environ.get("RANDOM_PROGRAMS", "25"))


@given(recipe=recipes(), n=st.sampled_from((LEAST, 3, MOST)))
@quickly(PROGRAMS)
def test_random_programs_equal_the_exact_ones(recipe: Recipe, n: int) -> None:
    assume(recipe.steps)

    def small(i, array, rng):
        """Whole numbers, whose sums are exact in any order."""
        return rng.integers(-3, 4, array.shape)

    try:
        same_at_every_size(recipe, ARGUMENTS, {"n": (LEAST, MOST)}, values=small, sizes=[{"n": n}])
    except Refusal as refusal:
        assert refusal.reason  # noqa: PT017  (named; no wrong program)
        assume(False)
