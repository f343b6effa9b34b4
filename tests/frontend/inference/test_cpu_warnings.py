"""Warnings of torch's CPU kernels, at the user's line."""

from __future__ import annotations

import warnings

import pytest
import torch

SPREADS = (torch.std, torch.var, torch.std_mean, torch.var_mean)


def _warned(function: object, *args: object, **kwargs: object) -> list[tuple[str, str]]:
    """Return the text and file of each warning of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)  # pyright: ignore
    return [(str(each.message).partition(" (Triggered")[0], each.filename) for each in caught]


@pytest.mark.parametrize("correction", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(0, 2), (1, 1), (2, 1), (2, 0)])
@pytest.mark.parametrize("function", SPREADS)
def test_too_few_degrees_of_freedom_are_reported(function: object, shape: tuple[int, int], correction: int) -> None:
    for dim in (None, 0, (0, 1)):
        expected = _warned(function, torch.ones(shape), dim, correction=correction)
        assert _warned(function, torch.ones(shape, device="tpu"), dim, correction=correction) == expected
        assert {file for _, file in expected} <= {__file__}


def _fill(x: torch.Tensor, how: str) -> None:
    mask, at = torch.tensor([True, False, True], device=x.device), torch.tensor([0, 2], device=x.device)
    match how:
        case "masked_fill_":
            x.masked_fill_(mask, 2)
        case "index_fill_":
            x.index_fill_(0, at, 2)
        case "index_put_":
            x.index_put_((at,), x.new_tensor(2))
        case "mask, number":
            x[mask] = 2
        case _:
            x[mask] = x.new_tensor([2, 2])


@pytest.mark.parametrize("how", ["masked_fill_", "index_fill_", "index_put_", "mask, number", "mask, numbers"])
def test_writes_to_expanded_tensors_are_reported(how: str) -> None:
    for start in (torch.sin, torch.cos):  # the second time, shapes and errors are known
        expected = _warned(_fill, start(torch.ones(1)).expand(3), how)
        assert expected and _warned(_fill, start(torch.ones(1, device="tpu")).expand(3), how) == expected
        assert not _warned(_fill, start(torch.ones(3, device="tpu")), how)


def test_a_warning_that_is_an_error_is_raised_at_the_call() -> None:
    x = torch.ones(3, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            x.std(correction=5)
    assert x.sum().item() == 3
