"""Repeated stretches of a sequence."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lazytpu.passes.clusters.repeats import Stretch, stretches

quickly = settings(max_examples=150, deadline=None, derandomize=True)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_stretch_ends_with_its_period() -> None:
    (stretch,) = stretches(letters("xabcdabcdabcy"), 1)
    assert stretch == Stretch(1, 12, 4)
    assert (stretch.count, stretch.spared) == (2, 4)


def test_several_stretches_come_in_order() -> None:
    repetitions = stretches(letters("ababab" + "q" + "uvwuvwuvwuvw"), 1)
    assert repetitions == [Stretch(0, 6, 2), Stretch(7, 19, 3)]


def test_shorter_of_two_periods_is_chosen() -> None:
    assert stretches(letters("abababab"), 1) == [Stretch(0, 8, 2)]
    assert stretches(letters("aaaa"), 1) == [Stretch(0, 4, 1)]


def test_layers_that_repeat_inside_are_found_as_layers() -> None:
    """Three equal projections in each layer: the layers spare more."""
    assert stretches(letters("mabababnop" * 5), 1) == [Stretch(0, 50, 10)]


def test_stretches_that_spare_little_are_ignored() -> None:
    assert stretches(letters("abab" + "xyzxyzxyz"), 3) == [Stretch(4, 13, 3)]
    assert stretches(letters("abcdef"), 1) == []
    assert stretches([], 1) == []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
@quickly
def test_stretches_have_their_period_and_do_not_overlap(sequence: list[int], least: int) -> None:
    end = 0
    for stretch in stretches(sequence, least):
        assert stretch.start >= end
        end = stretch.end
        assert stretch.count >= 2
        assert stretch.spared >= least
        elements = sequence[stretch.start : stretch.end]
        assert elements[stretch.period :] == elements[: -stretch.period]


@given(st.permutations(range(30)), st.integers(2, 12), st.lists(st.integers(100, 110), max_size=20))
@quickly
def test_every_model_of_equal_layers_is_found(layer: list[int], depth: int, around: list[int]) -> None:
    sequence = [*around, *(layer * depth), 99]
    assert any(
        stretch.period == 30 and stretch.start <= len(around) and stretch.end >= len(around) + 30 * depth
        for stretch in stretches(sequence, 30)
    )
