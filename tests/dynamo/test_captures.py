"""Captures of a graph: cached for each layout of its arguments, within a limit; their random draws are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.dynamo import captures
from lazytpu.dynamo.captures import Captures
from lazytpu.dynamo.results import Capture


def test_captures_used_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    records: Any = (None, None)
    of_two_records = Capture(records, {}, {}, {}, {}, 0, (), (), (), ())
    monkeypatch.setattr(captures, "_of_graphs", type(captures._of_graphs)())
    monkeypatch.setattr(captures, "LIMIT", 6)
    first, second = Captures.of("one"), Captures.of("other")
    for size in range(4):
        first.keep(size, of_two_records)
    assert list(first.kept) == [1, 2, 3]
    assert first.get(0) is None
    assert first.get(1) is of_two_records
    second.keep("a", of_two_records)
    assert [list(first.kept), list(second.kept)] == [[1, 3], ["a"]]
    monkeypatch.setattr(captures, "LIMIT", 1)
    second.keep("b", of_two_records)
    assert [list(first.kept), list(second.kept)] == [[], ["b"]]


def test_an_evicted_capture_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "LIMIT", 1)
    function = torch.compile(lambda x: x.sin() + 1)
    for size in (2, 3, 4, 3, 4):
        x = torch.linspace(0, 1, size)
        torch.testing.assert_close(function(x.to("tpu")).cpu(), x.sin() + 1)
        lazytpu.mark_step()


def test_a_graph_that_draws_on_the_host_draws_at_each_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(2).to("tpu")

    torch.manual_seed(0)
    expected = [function(torch.zeros(2, device="tpu")).tolist() for _ in range(3)]
    torch.manual_seed(0)
    compiled = torch.compile(function)
    assert [compiled(torch.zeros(2, device="tpu")).tolist() for _ in range(3)] == expected
