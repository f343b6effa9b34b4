"""The kernels of products of groups, interpreted on the CPU, compared with the loop."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazytpu.lowering.templates import grouped_products as grouped
from lazytpu.runtime.xla import client
from tests.compiling import QUICK


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    """Create lazytpu's client before jax creates one: with libtpu but no TPU, jax searches for one for minutes."""
    client.client()


@pytest.mark.parametrize("ends", [[100, 150, 300], [0, 290, 290]])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_interpreted_kernels(ends: list[int], dtype: jnp.dtype) -> None:
    """Of 300 rows, with widths that are no whole blocks."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal((300, width)), dtype) for width in (40, 130))
    weights = jnp.asarray(rng.standard_normal((3, 40, 130)), dtype)
    bounds = jnp.asarray(ends, jnp.int32)
    pairs = (
        (grouped.rows_by_kernel, grouped.rows_in_tiles, (x, weights, bounds)),
        (grouped.sums_by_kernel, grouped.sums_in_tiles, (x, y, bounds)),
    )
    close = 1e-4 if dtype is jnp.float32 else 2e-2
    for kernel, loop, operands in pairs:
        got = jax.jit(partial(kernel, interpret=True), compiler_options=dict(QUICK))(*operands)
        expected = jax.jit(loop, compiler_options=dict(QUICK))(*operands)
        assert got.dtype == expected.dtype == dtype
        np.testing.assert_allclose(np.float32(got), np.float32(expected), rtol=close, atol=close)
