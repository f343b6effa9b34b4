"""The comparison of collectives of thousands of ranks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lazytpu.distributed.comparison import Arbiter
from lazytpu.distributed.helper import Server
from lazytpu.distributed.ledger import Ledger, from_ranges, in_ranges

RANKS, CALLS = 4096, 12


class CountingServer(Server):
    """A server that counts its messages and timers."""

    def __init__(self, size: int):
        super().__init__(size, "token")
        self.told: Counter[str] = Counter()
        self.timers: list[Callable[[], None]] = []

    def tell(self, ranks: Sequence[int], message: Any) -> None:
        self.told[json.dumps(message)] += len(list(ranks))

    def later(self, seconds: float, call: Any) -> None:
        self.timers.append(call)


def message(step: int, members: str | None, line: str = "train.py") -> bytes:
    """Return the post of a step, whose shapes vary."""
    calls = [["0", f"all_gather float32[{1000 + i}, {step}]", f"{line}:{100 + i}"] for i in range(CALLS)]
    return json.dumps({"post": {"members": {} if members is None else {"0": members}, "calls": calls}}).encode()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of posted lists that ledgers have taken."""
    counts: Counter[str] = Counter()
    write, note = Ledger.write, Ledger._note

    def counting(name: str, method: Any) -> Any:
        def call(self: Any, *args: Any) -> None:
            counts[name] += 1
            method(self, *args)

        return call

    monkeypatch.setattr(Ledger, "write", counting("write", write))
    monkeypatch.setattr(Ledger, "_note", counting("note", note))
    return counts


def test_a_step_costs_each_rank_the_same_in_large_jobs(writes: Counter[str]):
    """A rank's post is two list comparisons, and a step one message to each rank and one timer."""
    server = CountingServer(RANKS)
    for step in range(3):
        writes.clear()
        server.timers.clear()
        for rank in range(RANKS):
            server.receive((rank,), message(step, in_ranges(range(RANKS)) if step == 0 else None))
        assert writes == {"write": 2 * RANKS}
        assert server.told[json.dumps({"agreed": "0", "count": CALLS * (step + 1)})] == RANKS
        assert len(server.timers) <= 1
    assert sum(server.told.values()) == 3 * RANKS
    assert len(server._posts) == 3, "equal messages are parsed once"


def test_ranks_that_cut_elsewhere_agree():
    """Rank 1 posts each collective by itself, at lines of its own."""
    server = CountingServer(3)
    everyone = in_ranges(range(3))
    server.receive((0,), message(0, everyone))
    server.receive((2,), message(0, everyone))
    calls = json.loads(message(0, everyone, "other.py"))["post"]["calls"]
    for i, call in enumerate(calls):
        server.receive((1,), json.dumps({"post": {"members": {"0": everyone}, "calls": [call]}}).encode())
        assert server.told[json.dumps({"agreed": "0", "count": i + 1})] == 3


@pytest.mark.parametrize("others", [(), (5,), (3, 4, 200)])
def test_equal_posts_of_many_ranks_are_like_single_ones(others: tuple[int, ...]):
    """The same ranks get the same messages, with the same lines."""
    single, together = CountingServer(256), CountingServer(256)
    members = in_ranges(range(256))
    for step in range(2):
        for first in range(0, 256, 64):
            ranks = range(first, first + 64)
            posts: dict[bytes, list[int]] = {}
            for rank in ranks:
                post = message(step + (rank in others), members if step == 0 else None)
                posts.setdefault(post, []).append(rank)
                single.receive((rank,), post)
            for post, senders in posts.items():
                together.receive(senders, post)
    assert single.told == together.told
    named = [text for text in together.told if re.search(rf"ranks? {others[0]}\b", text)] if others else []
    assert bool(named) == bool(others)


def test_an_error_of_many_ranks_is_short():
    server = CountingServer(RANKS)
    everyone = in_ranges(range(RANKS))
    for rank in range(RANKS):
        server.receive((rank,), message(int(rank == 5), everyone))
    (text,) = [json.loads(told)["text"] for told in server.told if "broken" in told]
    assert "rank 5: all_gather float32[1000, 1] at train.py:100" in text
    assert "ranks 0, 1, 2, 3, 4, 6, 7, 8, ...: all_gather float32[1000, 0] at train.py:100" in text
    assert len(text) < 600


def test_missing_ranks_are_reminded():
    server = CountingServer(4)
    server.receive((0,), message(0, "0:4:1"))
    server.receive((2,), message(0, "0:4:1"))
    (remind,) = server.timers
    remind()
    assert server.told == {json.dumps({"wanted": "0", "number": 0}): 2}
    for rank in (1, 3):
        server.receive((rank,), message(0, "0:4:1"))
    server.receive((1,), message(1, None))
    for timer in server.timers[1:]:
        timer()  # it was set before the ranks came: the next one is for those that are missing now
    server.timers[-1]()
    assert len(server.timers) == 3
    assert server.told[json.dumps({"wanted": "0", "number": CALLS})] == 3


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), ""),
        ((5,), "5:1:1"),
        (tuple(range(4096)), "0:4096:1"),
        (tuple(range(3, 4096, 16)), "3:256:16"),
        ((1, 0), "1:2:-1"),
        ((0, 1, 3, 4, 9), "0:2:1,3:2:1,9:1:1"),
    ],
)
def test_ranks_are_sent_as_ranges(ranks: tuple[int, ...], text: str):
    assert in_ranges(ranks) == text
    assert from_ranges(text) == ranks


def test_groups_of_thousands_of_ranks_are_made_from_ranges():
    told: list[Any] = []
    arbiter = Arbiter(4096, lambda ranks, message: told.append((list(ranks), message)), lambda seconds, call: None)
    arbiter.fail("g", "0:4096:1", "rank 7 failed")
    assert [(len(ranks), message["text"]) for ranks, message in told] == [(4096, "rank 7 failed")]
