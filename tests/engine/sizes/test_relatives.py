"""What varies in one trace varies in another one that has many of its records, and at sizes of 0 and 1."""

from __future__ import annotations

import pytest
import torch

import lazytpu
from lazytpu.ir.forms import form, parse, symbol

WIDTH = 8


def made(run: object) -> list[tuple[str, str]]:
    """The source and the notes of the programs that a function makes."""
    before = len(lazytpu.explain())
    assert callable(run)
    run()
    lazytpu.sync()
    return [(each.source, " ".join(each.notes)) for each in list(lazytpu.explain())[before:]]


def token(cache: torch.Tensor, weight: torch.Tensor, checked: bool = False) -> torch.Tensor:
    """A step of a cache that grows, with a check in front of it or without."""
    start = cache[:, -1:]
    if checked:
        start = start.clamp(-4, 4) + 0.5
    grown = torch.cat((cache, start * weight), 1)
    scores = (grown * weight).tanh().softmax(1)
    return (scores * grown).exp().sin().cumsum(1) * 0.1


def steps(lengths: tuple[int, ...], checked: bool = False, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(WIDTH, generator=generator)
    for length in lengths:
        cache = torch.randn(1, length, WIDTH, generator=generator)
        device, on_device = weight.to("tpu"), cache.to("tpu")
        lazytpu.mark_step()
        found = token(on_device, device, checked)
        lazytpu.mark_step()
        torch.testing.assert_close(found.cpu(), token(cache, weight, checked))


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_a_second_element_makes_the_program_of_many() -> None:
    found = made(lambda: steps((1, 2, 3, 7, 12)))
    assert len(found) == 2  # of one element, and of 2 to a bound
    assert "one program for sizes n 2.." in found[1][1]


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_another_way_to_take_a_step_varies_as_the_first_one() -> None:
    steps((5, 9))
    found = made(lambda: steps((6, 11, 7), checked=True))
    assert len(found) == 1
    assert "one program for sizes n " in found[0][1]


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_a_step_whose_relatives_do_not_vary_is_compiled_as_it_is() -> None:
    steps((5,))
    found = made(lambda: steps((5,), checked=True))
    assert [notes for _, notes in found if "one program for sizes" in notes] == []


def test_forms_of_forms() -> None:
    there = {"n": symbol("m") + 1, "m": form(4)}
    assert str(parse("2*n+m").where(there)) == "2*m+6"
    assert str(parse("(n+1)/2+n*m").where(there)) == str(parse("(m+2)/2+4*m+4"))


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_sizes_of_a_relative_that_are_no_symbols_here() -> None:
    """A line has strided convolutions of many lengths, and then others whose channels vary, of none, too."""

    def convolved(of: tuple[int, ...], by: tuple[int, ...], **settings: int) -> None:
        lazytpu.mark_step()
        x, weight = torch.randn(of), torch.randn(by)
        found = torch.conv1d(x.to("tpu"), weight.to("tpu"), **settings)
        lazytpu.mark_step()
        torch.testing.assert_close(found.cpu(), torch.conv1d(x, weight, **settings), rtol=1e-4, atol=1e-4)

    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = []
    cases += [((2, 4, n), (6, 4, 5), {"stride": 2, "padding": 1}) for n in (17, 20, 23, 29, 16, 8)]
    cases += [((2, n, 12), (6, n, 3), {}) for n in (17, 20, 2, 1, 0, 3)]
    for of, by, settings in cases:
        convolved(of, by, **settings)
