"""Size expressions fitted to integers alone, without records from which some could be derived."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lazytpu.engine.sizes.fitting import Fitting, Varying, simplest


def fit(samples: Sequence[np.ndarray], kinds: np.ndarray) -> Varying | None:
    """Return the simplest size expressions for samples of a structure's integers, or None if there are none."""
    table = np.stack(samples)
    return simplest(lambda: Fitting(table, kinds), range(len(kinds)))
