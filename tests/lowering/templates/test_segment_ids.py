"""Ids of segments in i32: equal exactly where the given integers are, and never an id of padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lazytpu.ir.attention_work import NO_SEGMENT, UNSEEN
from lazytpu.lowering.emit import emit
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK
from tests.lowering.harness import module_of

LEAST, GREATEST = -(1 << 31), (1 << 31) - 1
NAMES = {"bool": "i1", "uint8": "ui8", "int32": "i32", "uint32": "ui32", "int64": "i64", "uint64": "ui64"}


@pytest.mark.parametrize(
    ("dtype", "queries", "keys"),
    [
        ("bool", [[False, True]], [[True, True, False]]),
        ("uint8", [[0, 255]], [[255, 0, 7]]),
        ("int32", [[LEAST, GREATEST]], [[GREATEST, LEAST, LEAST + 1]]),
        ("uint32", [[0, 1 << 31]], [[1 << 31, 5, (1 << 32) - 1]]),
        ("int64", [[3, 3 + (1 << 32)], [LEAST, -5]], [[3, 4, 3 + (1 << 32)], [-5, -5, LEAST]]),
        ("uint64", [[(1 << 64) - 1, 1]], [[(1 << 64) - 1, (1 << 63) - 1, 1]]),
    ],
)
def test_ids_are_equal_where_the_integers_are(dtype: str, queries: Any, keys: Any) -> None:
    arrays = [np.array(queries, dtype), np.array(keys, dtype)]

    def build(b, of_query, of_key):
        return b.template("segment_ids", [of_query, of_key], [("i32", x.shape) for x in arrays])

    module = module_of(build, *[(NAMES[dtype], x.shape) for x in arrays])
    program = Program.compile(emit(module), options=QUICK)
    results = [client.to_host(x) for x in program.run([client.to_device(x) for x in arrays])]
    of_query, of_key = results
    want = arrays[0][:, :, None] == arrays[1][:, None]
    np.testing.assert_array_equal(of_query[:, :, None] == of_key[:, None], want)
    assert all(((ids != NO_SEGMENT) & (ids != UNSEEN)).all() for ids in results)
