"""What the CPU refuses is refused at the call, with its exception type and in its words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

REFUSED: dict[str, Callable[[str], object]] = {
    "max of nothing": lambda d: torch.ones(0, device=d).max(),
    "max along nothing": lambda d: torch.ones(0, 3, device=d).max(0),
    "sort, dim": lambda d: torch.ones(5, device=d).sort(1),
    "sort, complex": lambda d: torch.ones(5, dtype=torch.complex64, device=d).sort(),
    "var, integers": lambda d: torch.ones(5, dtype=torch.int64, device=d).var(),
    "std, mean, integers": lambda d: torch.std_mean(torch.ones(5, dtype=torch.int64, device=d)),
    "pow, negative": lambda d: torch.ones(5, dtype=torch.int64, device=d) ** -1,
    "pow, negative, in place": lambda d: torch.ones(5, dtype=torch.int64, device=d).pow_(-1),
    "labels": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(2, dtype=torch.int32, device=d)),
    "channels": lambda d: F.conv_transpose1d(torch.ones(1, 2, 3, device=d), torch.ones(3, 2, 2, device=d)),
    "complex parts": lambda d: torch.complex(torch.ones(2, device=d), torch.ones(2, dtype=torch.int32, device=d)),
    "embedding of no table": lambda d: F.embedding(
        torch.ones(2, dtype=torch.int64, device=d), torch.ones((), device=d)
    ),
    "narrow_copy, dim": lambda d: torch.narrow_copy(torch.ones(2, 2, device=d), 3, 0, 1),
    "broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "matrices": lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 5, device=d),
    "matrices, dtypes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(3, 5, dtype=torch.float64, device=d),
}


@pytest.mark.parametrize("name", REFUSED)
def test_as_on_the_cpu(name: str) -> None:
    errors: list[tuple[type[BaseException], str]] = []
    for device in ("cpu", "tpu"):
        with pytest.raises(Exception) as error:
            REFUSED[name](device)
        errors.append((error.type, str(error.value)))
    assert errors[1] == errors[0]


def test_large_tensors_are_refused_in_the_same_words() -> None:
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(9000x8000 and 9000x8000\)"):
        torch.empty(9000, 8000, device="tpu") @ torch.empty(9000, 8000, device="tpu")
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(9000\) must match the size of tensor b \(8000\)"):
        torch.empty(8000, 9000, device="tpu") + torch.empty(9000, 8000, device="tpu")


def test_huge_tensors_are_refused_without_asking_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.empty(1 << 20, 1 << 12, dtype=torch.int64, device="tpu") ** -1
