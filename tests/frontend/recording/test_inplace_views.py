"""In-place writes, writes through views, `.data` and `out=`: all tensors that share the memory agree with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def through_flat_view(x: Tensor) -> Tensor:
    x.detach().t()[1].add_(5)
    every_second = x.view(-1)[::2]
    return every_second.copy_(every_second.flip(0))


def before_expanding(x: Tensor) -> Tensor:
    rows = x[0].expand(5, 4)
    x[0, 1] = 9
    return rows


def as_other_dtypes(x: Tensor) -> Tensor:
    x.view(torch.int32)[0].fill_(0x3F800000)
    x.view(torch.uint8)[1, ::4].fill_(0)
    return x.view(torch.int64)


def on_diagonals(x: Tensor) -> None:
    x.diagonal().fill_(7)
    x.diagonal(1).mul_(2)


def under_windows(x: Tensor) -> Tensor:
    windows = x.view(-1).unfold(0, 3, 2)
    x[0].zero_()
    return windows.sum(1)


def swapping_rows(x: Tensor) -> None:
    row = x[0].clone()
    x[0].copy_(x[1])
    x[1].copy_(row)


def foreach_views(x: Tensor) -> None:
    torch._foreach_add_([x[0], x[1]], [1.0, 2.0])
    torch._foreach_mul_(list(x.unbind(1)), 3)


def resized(x: Tensor) -> Tensor:
    flat = x.view(-1)
    x.resize_(2, 3)
    flat[1] = 50
    return flat


def replaced_data(x: Tensor) -> Tensor:
    row = x[0]
    x.data = torch.zeros(3, 4).to(x.device)
    row.add_(100)
    x.data.sub_(1)
    return row


def swapped_data(x: Tensor) -> Tensor:
    y = x.clone()
    x.data, y.data = y.data, x.data
    x.add_(1)
    return y


def set_to_another(x: Tensor) -> Tensor:
    y = torch.ones(3, 4).to(x.device)
    x.set_(y)  # pyright: ignore[reportArgumentType]
    x.add_(1)
    return y


def no_elements(x: Tensor) -> Tensor:
    none = x[:0]
    none.add_(1)
    return torch.cat([none, x])


def one_element(x: Tensor) -> Tensor:
    element = x[1, 2]
    element.add_(10)
    element.copy_(torch.tensor(3))
    x[0, 0] = element
    return element


def complex_parts(x: Tensor) -> Tensor:
    components = torch.view_as_real(torch.complex(x, x))
    components[..., 1].mul_(2)
    return components


def product_into_a_transpose(x: Tensor) -> None:
    x.t().addmm_(torch.ones(4, 2).to(x.device), torch.ones(2, 3).to(x.device))


def shifted_onto_itself(x: Tensor) -> None:
    x.view(-1)[1:].copy_(x.view(-1)[:-1])


def written_where_expanded(x: Tensor) -> None:
    x[:, :1].expand(3, 4).add_(1)


def into_a_row(x: Tensor) -> Tensor:
    return torch.add(x[0], x[1], out=x[2])


def into_what_is_read(x: Tensor) -> Tensor:
    return torch.add(x[0], 1, out=x.view(-1)[2:6])


def into_nothing(x: Tensor) -> Tensor:
    return torch.add(x.t(), 1, out=torch.empty(0, device=x.device))


def into_integers(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=torch.empty(3, 4, dtype=torch.int32, device=x.device))


def fractions_into_integers(x: Tensor) -> Tensor:
    return x.long().add_(1.5)


def of_a_shape_that_does_not_fit(x: Tensor) -> Tensor:
    return x.mul_(torch.ones(3).to(x.device))


CASES: list[Callable[[Tensor], Any]] = [
    through_flat_view,
    before_expanding,
    as_other_dtypes,
    on_diagonals,
    under_windows,
    swapping_rows,
    foreach_views,
    resized,
    replaced_data,
    swapped_data,
    set_to_another,
    no_elements,
    one_element,
    complex_parts,
    product_into_a_transpose,
    shifted_onto_itself,
    written_where_expanded,
    into_a_row,
    into_what_is_read,
    into_nothing,
    into_integers,
    fractions_into_integers,
    of_a_shape_that_does_not_fit,
]


def outcome(case: Callable[[Tensor], Any], device: str) -> Any:
    """Return the written tensor and the result after `case`, or the type and message of its error."""
    x = torch.arange(12.0).reshape(3, 4).to(device)
    try:
        result = case(x)
    except RuntimeError as error:
        return type(error), str(error)
    tensors = [x] if result is None else [x, result]
    return [(t.dtype, t.stride(), t.tolist()) for t in tensors]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_memory_is_shared_as_on_the_cpu(case: Callable[[Tensor], Any]) -> None:
    assert outcome(case, "tpu") == outcome(case, "cpu")
