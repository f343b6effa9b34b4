"""A state's expected child is a prediction: the recorded key decides."""

from __future__ import annotations

import random

import torch

from lazytpu.frontend.tensors import ROOT, recorder
from lazytpu.trace.trie import NOWHERE, State


def state() -> State:
    return State(None, None, None, 0, 0, 0)


def test_no_edge_leads_nowhere() -> None:
    assert state().expected is NOWHERE
    assert NOWHERE.key != ()


def test_a_removed_child_is_expected_no_more() -> None:
    parent, child, second = state(), state(), state()
    parent.add(("a",), child)
    parent.add(("b",), second)
    parent.expected = child
    parent.remove(second)
    assert parent.expected is child
    parent.remove(child)
    assert parent.expected is NOWHERE
    assert parent.next == {}


def test_a_steady_loop_follows_the_expected_chain() -> None:
    x = torch.ones(3, device="tpu")
    for _ in range(2):
        y = (x + x).relu() * 2.0
        path = recorder().state
        del y
        recorder().cut()
    chain = [ROOT]
    while chain[-1] is not path:
        following = chain[-1].expected
        assert isinstance(following, State)
        chain.append(following)
    assert len(chain) == path.depth + 1


def test_steps_that_branch_at_random_are_exact() -> None:
    choose = random.Random(0)
    x, expected = torch.full((4,), 0.5, device="tpu"), torch.full((4,), 0.5)
    for _ in range(40):
        for _ in range(3):
            match choose.randrange(4):
                case 0:
                    x, expected = x + 1, expected + 1
                case 1:
                    x, expected = x * 0.5, expected * 0.5
                case 2:
                    x, expected = x + x, expected + expected
                case _:
                    x, expected = torch.rand(4, device="tpu") * 0 + x, expected
        recorder().cut()
    torch.testing.assert_close(x.cpu(), expected)


def test_the_same_record_twice_in_a_row() -> None:
    for _ in range(3):
        torch.manual_seed(0)
        a, b, c = (torch.rand(5, device="tpu") for _ in range(3))
        recorder().cut()
        assert not torch.equal(a.cpu(), b.cpu())
        assert not torch.equal(b.cpu(), c.cpu())
