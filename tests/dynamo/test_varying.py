"""Notes about functions that are compiled again for each value: one per function, with its line and a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import lazytpu
from lazytpu.dynamo.breaks import graph_breaks
from lazytpu.dynamo.varying import SizeWarning


@pytest.fixture
def a_program_for_each_size() -> Iterator[None]:
    with lazytpu.options(buckets="off"):
        yield


def sines(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.shape[0]


@pytest.mark.usefixtures("a_program_for_each_size")
def test_dynamic_sizes_warn_once_with_names_and_a_remedy() -> None:
    compiled = torch.compile(sines, dynamic=True)
    compiled(torch.ones(3, device="tpu"))
    with pytest.warns(SizeWarning, match=r"x\.size\(\)\[0\] was 3 and is 5.*pad") as caught:
        compiled(torch.ones(5, device="tpu"))
    assert (caught[0].filename, caught[0].lineno) == (__file__, sines.__code__.co_firstlineno + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(7, device="tpu"))
    (noted,) = [item for item in graph_breaks() if item.place.startswith(__file__)]
    assert noted.source == "return x.sin() + x.shape[0]"
    assert "sizes that vary at" in str(lazytpu.explain())


@pytest.mark.usefixtures("a_program_for_each_size")
def test_marked_sizes_warn() -> None:
    compiled = torch.compile(lambda x: x.cos())
    for size in (4, 6):
        x = torch.ones(size, device="tpu")
        torch._dynamo.mark_dynamic(x, 0)
        if size == 6:
            with pytest.warns(SizeWarning, match="was 4 and is 6"):
                compiled(x)
        else:
            compiled(x)


@pytest.mark.usefixtures("a_program_for_each_size")
def test_unrequested_dynamic_sizes_are_noted_without_a_warning() -> None:
    compiled = torch.compile(lambda x: x.tan())
    with warnings.catch_warnings():
        warnings.simplefilter("error", SizeWarning)
        for size in (3, 4, 5):
            compiled(torch.ones(size, device="tpu"))
    assert "was 4 and is 5" in graph_breaks()[-1].reason


@pytest.mark.usefixtures("fresh_traces")
@pytest.mark.parametrize("ask", ["dynamic=True", "mark_dynamic", "two sizes"])
def test_with_buckets_sizes_share_programs_without_a_warning(ask: str) -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(0) * x.shape[0]).cumsum(0)

    compiled = torch.compile(rows, dynamic=True if ask == "dynamic=True" else None)
    before = len(lazytpu.explain())
    with warnings.catch_warnings(), lazytpu.options(buckets=(16, 24)):
        warnings.simplefilter("error", SizeWarning)
        for size in (9, 11, 12, 16, 20, 23, 13):
            x = torch.rand(size, 4)
            on_device = x.to("tpu")
            if ask == "mark_dynamic":
                torch._dynamo.mark_dynamic(on_device, 0)
            torch.testing.assert_close(compiled(on_device).cpu(), rows(x))
    reasons = list(lazytpu.explain())[before:]
    assert len(reasons) == (2 if ask != "two sizes" else 3)
    assert ["one program for sizes" in str(r) for r in reasons] == [ask != "two sizes", True, True][: len(reasons)]


def test_floats_that_an_op_wants_fixed_are_named() -> None:
    compiled = torch.compile(lambda x, weight: torch.add(x, x, alpha=weight))
    for weight in (0.5, 0.25, 0.125, 2.0):
        assert compiled(torch.ones(2, device="tpu"), weight).tolist() == [1 + weight] * 2
    notes = [item for item in graph_breaks() if "value of weight" in item.reason]
    assert len(notes) == 1
    assert notes[0].what == "a number that varies"
    assert notes[0].place.startswith(__file__)
