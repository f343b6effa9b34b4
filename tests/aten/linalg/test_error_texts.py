"""Errors of linear algebra that shapes and dtypes raise have the CPU's type and text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

SQUARE, BATCH, WIDE = torch.eye(2), torch.eye(2).expand(3, 2, 2), torch.ones(2, 3)
SHAPES = ((), (1,), (2,), (3,), (2, 2), (3, 2), (2, 3), (4, 2), (4, 2, 2), (3, 2, 1), (2, 3, 2))
MATRICES = (SQUARE, BATCH, WIDE, WIDE.expand(5, 2, 3), SQUARE.long(), SQUARE.half(), torch.ones(3), torch.tensor(1.0))
OPS: dict[str, Callable[..., Any]] = {
    "solve": torch.linalg.solve,
    "solve from the right": lambda a, b: torch.linalg.solve(a, b, left=False),
    "solve_ex": torch.linalg.solve_ex,
    "lstsq": torch.linalg.lstsq,
    "pinv": lambda a, b: torch.linalg.pinv(a),
    "pinv of a Hermitian": lambda a, b: torch.linalg.pinv(a, hermitian=True),
}


def outcome(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    try:
        results = function(*tensors)
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        return type(error), re.split(r"\n| \(aten", str(error))[0]
    first = results if isinstance(results, torch.Tensor) else results[0]
    return first.shape, first.dtype


@pytest.mark.parametrize("name", OPS)
def test_shapes_and_dtypes_raise_the_errors_of_the_cpu(name: str) -> None:
    for matrix in MATRICES:
        for rhs in (*[torch.ones(shape) for shape in SHAPES], torch.ones(2, 2, dtype=torch.int64)):
            expected = outcome(OPS[name], matrix, rhs)
            assert outcome(OPS[name], matrix.to("tpu"), rhs.to("tpu")) == expected, (matrix.shape, rhs.shape)
