"""A size that varies in one trace is assumed to vary in related traces, and at sizes 0 and 1."""

from __future__ import annotations

import pytest
import torch

import lazytpu
from lazytpu.ir.forms import form, parse, symbol

WIDTH = 8


def programs_of(run: object) -> list[tuple[str, str]]:
    """Return the source and the notes of each program that a function adds."""
    before = len(lazytpu.explain())
    assert callable(run)
    run()
    lazytpu.sync()
    return [(program.source, " ".join(program.notes)) for program in list(lazytpu.explain())[before:]]


def token(cache: torch.Tensor, weight: torch.Tensor, checked: bool = False) -> torch.Tensor:
    """Extend a cache by a token, optionally with a check before it."""
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
        result = token(on_device, device, checked)
        lazytpu.mark_step()
        torch.testing.assert_close(result.cpu(), token(cache, weight, checked))


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_second_size_above_one_compiles_the_program_for_many() -> None:
    programs = programs_of(lambda: steps((1, 2, 3, 7, 12)))
    assert len(programs) == 2  # a program for one element, and one for two elements or more
    assert "one program for sizes n 2.." in programs[1][1]


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_related_step_is_compiled_for_many_sizes_at_once() -> None:
    steps((5, 9))
    programs = programs_of(lambda: steps((6, 11, 7), checked=True))
    assert len(programs) == 1
    assert "one program for sizes n " in programs[0][1]


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_step_without_varying_relatives_is_compiled_for_its_size() -> None:
    steps((5,))
    programs = programs_of(lambda: steps((5,), checked=True))
    assert [notes for _, notes in programs if "one program for sizes" in notes] == []


def test_expression_substitutes_symbols() -> None:
    substitution = {"n": symbol("m") + 1, "m": form(4)}
    assert str(parse("2*n+m").where(substitution)) == "2*m+6"
    assert str(parse("(n+1)/2+n*m").where(substitution)) == str(parse("(m+2)/2+4*m+4"))


@pytest.mark.usefixtures("bucketed", "fresh_traces")
def test_symbols_of_a_relative_may_be_constant() -> None:
    """A source line has convolutions of varying lengths, then convolutions of varying channels, also of 0 channels."""

    def convolved(of: tuple[int, ...], by: tuple[int, ...], **settings: int) -> None:
        lazytpu.mark_step()
        x, weight = torch.randn(of), torch.randn(by)
        result = torch.conv1d(x.to("tpu"), weight.to("tpu"), **settings)
        lazytpu.mark_step()
        torch.testing.assert_close(result.cpu(), torch.conv1d(x, weight, **settings), rtol=1e-4, atol=1e-4)

    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = []
    cases += [((2, 4, n), (6, 4, 5), {"stride": 2, "padding": 1}) for n in (17, 20, 23, 29, 16, 8)]
    cases += [((2, n, 12), (6, n, 3), {}) for n in (17, 20, 2, 1, 0, 3)]
    for of, by, settings in cases:
        convolved(of, by, **settings)
