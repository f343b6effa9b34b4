"""The control plane's server alone: the messages that it sends to each rank."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lazytpu.distributed.helper import Server
from lazytpu.distributed.ledger import Post, in_ranges

SUM, OTHER = ("all_reduce(add) float32[2]", "a.py:1"), ("all_reduce(add) float32[3]", "b.py:2")


class RecordingServer(Server):
    """A server of two ranks that records its messages."""

    def __init__(self) -> None:
        super().__init__(2, "token")
        self.sent: list[tuple[int, Any]] = []

    def tell(self, ranks: Sequence[int], message: Any) -> None:
        self.sent.extend((rank, message) for rank in ranks)

    def post(self, rank: int, members: dict[str, list[int]], calls: list[Any], launches: bool = True) -> None:
        ranges = {group: in_ranges(ranks) for group, ranks in members.items()}
        self.arbiter.post((rank,), Post.parsed(calls, ranges, launches))

    def fail(self, rank: int, group: str, members: Any, text: str) -> None:
        super().fail(rank, group, in_ranges(members), text)

    def texts(self) -> dict[int, str]:
        """Return why a group is broken, for each rank that got the message."""
        return {rank: message["text"] for rank, message in self.sent if "broken" in message}


def _post(
    server: RecordingServer, rank: int, group: str, members: list[int] | None, calls: list[Any], launches: bool = True
) -> None:
    """Post collectives of one group."""
    server.post(rank, {} if members is None else {group: members}, [(group, *call) for call in calls], launches)


def served(act: Any) -> RecordingServer:
    """Return a server with the messages that it sends while `act` uses it."""

    async def run() -> RecordingServer:
        server = RecordingServer()
        await act(server)
        return server

    return asyncio.run(run())


def test_equal_calls_are_agreed_as_they_come():
    """Ranks post batches of different sizes, and are notified of each collective as soon as all have posted it."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM, OTHER])
        assert not server.sent
        _post(server, 1, "g", [0, 1], [SUM])
        assert server.sent == [(rank, {"agreed": "g", "count": 1}) for rank in (0, 1)]
        _post(server, 1, "g", None, [OTHER])

    assert served(act).sent[2:] == [(rank, {"agreed": "g", "count": 2}) for rank in (0, 1)]


def test_other_lines_are_the_same_call():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        _post(server, 1, "g", [0, 1], [(SUM[0], "elsewhere.py:7")])

    assert served(act).sent == [(rank, {"agreed": "g", "count": 1}) for rank in (0, 1)]


def test_different_calls_break_the_group_for_good():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM, SUM])
        _post(server, 1, "g", [0, 1], [OTHER])
        _post(server, 1, "g", [0, 1], [SUM])

    server = served(act)
    assert set(server.texts()) == {0, 1}
    for text in server.texts().values():
        assert f"rank 0: {SUM[0]} at {SUM[1]}" in text
        assert f"rank 1: {OTHER[0]} at {OTHER[1]}" in text
    assert [rank for rank, message in server.sent if "broken" in message] == [0, 1, 1]


def test_groups_of_the_same_ranks_have_one_order():
    """Otherwise they would wait for each other, for hours with long timeouts. Barriers are not ordered."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "barriers", [0, 1], [("barrier", "a.py:9")], launches=False)
        _post(server, 0, "g", [0, 1], [SUM])
        assert not server.sent
        _post(server, 1, "h", [1, 0], [OTHER])
        _post(server, 0, "later", [0, 1], [SUM])
        _post(server, 1, "later", [0, 1], [SUM])

    server = served(act)
    assert {message["broken"] for _, message in server.sent if "broken" in message} == {"g", "h"}
    for text in server.texts().values():
        assert f"rank 0: first {SUM[0]} at a.py:1 in group 'g'; rank 1: first {OTHER[0]} at b.py:2 in group" in text
    assert server.sent[-1] == (1, {"agreed": "later", "count": 1})


def test_a_cut_has_collectives_of_several_groups():
    """Another rank may cut between any two of them."""

    async def act(server: RecordingServer) -> None:
        server.post(0, {"g": [0, 1], "h": [0, 1]}, [("g", *SUM), ("h", *SUM), ("g", *OTHER)])
        server.post(1, {"g": [0, 1], "h": [0, 1]}, [("g", *SUM)])
        server.post(1, {}, [("h", *SUM), ("g", *OTHER)])
        server.post(1, {}, [("g", *SUM), ("h", *SUM)])
        server.post(0, {}, [("h", *SUM), ("g", *SUM)])

    server = served(act)
    agreed = [
        (message["agreed"], message["count"]) for rank, message in server.sent if "agreed" in message and not rank
    ]
    assert agreed == [("g", 1), ("h", 1), ("g", 2)]
    assert set(server.texts()) == {0, 1}


def test_broken_groups_do_not_count_in_the_order():
    """A rank that fails before a collective launches the following ones; others have posted both, or will."""

    async def act(server: RecordingServer) -> None:
        server.post(0, {"g": [0, 1, 2], "h": [0, 1, 2]}, [("g", *SUM), ("h", *OTHER)])
        server.fail(1, "g", [0, 1, 2], "rank 1 failed before all_reduce")
        _post(server, 1, "h", [0, 1, 2], [OTHER])
        server.post(2, {}, [("g", *SUM), ("h", *OTHER)])

    server = served(act)
    assert {message["broken"] for _, message in server.sent if "broken" in message} == {"g"}
    assert server.sent[-1] == (2, {"agreed": "h", "count": 1})


def test_a_collective_behind_a_broken_group_is_agreed():
    async def act(server: RecordingServer) -> None:
        for rank in (0, 1):
            server.post(rank, {"g": [0, 1, 2], "h": [0, 1, 2]}, [("g", *SUM), ("h", *OTHER)])
        _post(server, 2, "g", [0, 1, 2], [OTHER])
        _post(server, 2, "h", [0, 1, 2], [OTHER])
        await asyncio.sleep(0)

    assert served(act).sent[-1] == (2, {"agreed": "h", "count": 1})


def test_agreed_collectives_are_reported_before_a_disagreement():
    """One rank posts both in one message: all launch the first one, or none does."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM, SUM])
        _post(server, 1, "g", [0, 1], [SUM, OTHER])

    told_to = [message for rank, message in served(act).sent if rank == 0]
    assert told_to[0] == {"agreed": "g", "count": 1}
    assert "broken" in told_to[1]


def test_other_groups_go_on():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        _post(server, 1, "g", [0, 1], [OTHER])
        _post(server, 0, "h", [0], [SUM])

    assert served(act).sent[-1] == (0, {"agreed": "h", "count": 1})


def test_a_lost_rank_breaks_its_groups_now_and_later():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        server.gone(1, "was killed or crashed")
        _post(server, 0, "later", [0, 1], [SUM])
        _post(server, 0, "alone", [0], [SUM])

    server = served(act)
    broken = [message["broken"] for rank, message in server.sent if rank == 0 and "broken" in message]
    assert broken == ["g", "later", "later"]
    assert "rank 1 was killed or crashed, before any collective of the group" in server.texts()[0]
    assert server.sent[-1] == (0, {"agreed": "alone", "count": 1})


def test_the_exception_of_a_lost_rank_is_in_the_error():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        server.raised(1, "ValueError: wrong at a.py:3")
        assert not server.sent, "an interactive session may continue"
        server.gone(1, "was killed or crashed")

    assert "rank 1 raised ValueError: wrong at a.py:3, before any collective" in served(act).texts()[0]


def test_a_rank_that_ends_breaks_its_groups_before_its_process_is_gone():
    """Running collectives continue, and nothing is reported: it has taken part in all that it launched."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        server.leaves(1, "has ended")
        assert server.texts()
        server.gone(1, "has ended")

    broken = [message for rank, message in served(act).sent if rank == 0 and "broken" in message]
    assert [(message["cut"], message["quiet"]) for message in broken] == [(False, True)]


def test_a_rank_is_notified_that_others_wait_for_it():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        await asyncio.sleep(0.2)

    assert served(act).sent == [(1, {"wanted": "g", "number": 0})]


def test_giving_up_names_the_missing_ranks():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        server.give_up(0, "g", 3.0)

    assert "rank 0 waited 3 s in collective 0 of group 'g', " in served(act).texts()[1]
    assert "for rank 1 (its last: none)" in served(act).texts()[1]


def test_giving_up_names_the_call_of_the_missing_rank():
    """It waits in another group, or for a message."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        _mail(server, 1, 0, 0, False)
        server.withdraw(1, 0, 3.0)
        server.give_up(0, "g", 3.0)

    server = served(act)
    assert server.sent[0][1]["text"] == f"the other end did not come within 3 s, which has come to: {SUM[0]} ({SUM[1]})"
    assert "for rank 1 (its last: none), which has come to: rank 1 expects float32 4 at a.py:1" in server.texts()[0]


def test_a_stuck_collective_names_silent_ranks():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        _post(server, 1, "g", [0, 1], [SUM])
        server.stuck(0, "g", 0, 3.0, "all_reduce at a.py:1")
        server.stuck(0, "g", 0, 3.0, "all_reduce at a.py:1")
        assert server.sent[2:] == [(1, {"state": "g", "number": 0})], "once"
        await asyncio.sleep(1.2)

    for text in served(act).texts().values():
        assert "rank 0 is in collective 0 of group 'g', all_reduce at a.py:1, for 3 s; rank 0 is in it; rank 1 " in text
        assert "rank 1 does not answer" in text


def test_a_stuck_collective_reports_the_states_of_ranks():
    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 1], [SUM])
        _post(server, 1, "g", [0, 1], [SUM])
        server.stuck(0, "g", 0, 3.0, "all_reduce at a.py:1")
        server.answer(1, "g", 0, "has done it")
        await asyncio.sleep(1.2)

    assert "rank 1 has done it" in served(act).texts()[1]


def test_a_rank_that_fails_breaks_its_group():
    async def act(server: RecordingServer) -> None:
        server.fail(1, "g", [0, 1], "rank 1 failed before all_reduce")
        _post(server, 0, "g", [0, 1], [SUM])

    assert served(act).texts() == {0: "rank 1 failed before all_reduce", 1: "rank 1 failed before all_reduce"}


def test_other_members_break_the_group():
    """Also for a rank that the others do not count as a member."""

    async def act(server: RecordingServer) -> None:
        _post(server, 0, "g", [0, 2], [SUM])
        _post(server, 1, "g", [0, 1], [SUM])
        _post(server, 0, "h", [0], [SUM])

    server = served(act)
    assert set(server.texts()) == {0, 1, 2}
    assert "rank 1: [0, 1] at a.py:1; others: [0, 2]" in server.texts()[1]
    assert server.sent[-1] == (0, {"agreed": "h", "count": 1})


def _mail(
    server: RecordingServer, rank: int, number: int, other: int | None, sends: bool, what: str = "float32 4"
) -> None:
    server.mail(rank, "g", 0, number=number, other=other, sends=sends, what=what, shown=f"{what} at a.py:{rank}")


def test_the_ends_of_a_message_are_matched():
    """In order of arrival; a receiver without a source takes the first one."""

    async def act(server: RecordingServer) -> None:
        _mail(server, 0, 0, 1, True)
        _mail(server, 0, 1, 1, True)
        _mail(server, 1, 5, None, False)
        assert server.sent == [(1, {"mail": 5, "with": 0, "text": ""}), (0, {"mail": 0, "with": 1, "text": ""})]
        _mail(server, 1, 6, 1, False)
        assert len(server.sent) == 2, "from another"
        _mail(server, 1, 7, 0, False)

    assert served(act).sent[2:] == [(1, {"mail": 7, "with": 0, "text": ""}), (0, {"mail": 1, "with": 1, "text": ""})]


def test_ends_that_disagree_get_both_descriptions():
    async def act(server: RecordingServer) -> None:
        _mail(server, 1, 0, 0, False)
        _mail(server, 0, 3, 1, True, "int32 4")

    for _, message in served(act).sent:
        assert "rank 0 sends int32 4 at a.py:0; rank 1 expects float32 4 at a.py:1" in message["text"]


def test_a_message_does_not_wait_for_ranks_that_left_or_gave_up():
    async def act(server: RecordingServer) -> None:
        _mail(server, 1, 0, 0, False)
        server.withdraw(1, 0, 3.0)
        assert server.sent.pop()[1]["text"] == "the other end did not come within 3 s"
        _mail(server, 0, 0, 1, True)
        assert not server.sent
        server.leaves(1, "was killed or crashed")
        _mail(server, 0, 1, 1, False)

    texts = [message["text"] for rank, message in served(act).sent if rank == 0]
    assert [text.split(": ")[0] for text in texts] == ["rank 1 was killed or crashed"] * 2


def test_one_rank_of_each_other_folder_is_asked_for_a_program():
    async def act(server: RecordingServer) -> None:
        server.writers = dict.fromkeys(range(4))  # pyright: ignore[reportAttributeAccessIssue]
        server.folders = {0: "a", 1: "a", 2: "b", 3: "c"}
        server.seek(0, "program/1", None)
        assert server.sent == [(rank, {"seek": "program/1", "by": 0}) for rank in (2, 3)]
        server.has(2, "program/1", 0, False)
        assert len(server.sent) == 2, "the other may have it"
        server.has(3, "program/1", 0, True)
        assert server.sent[2:] == [(0, {"sought": "program/1", "there": True})]
        server.has(2, "program/1", 0, True)  # too late

    assert len(served(act).sent) == 3


def test_a_program_is_not_sought_without_other_ranks():
    async def act(server: RecordingServer) -> None:
        server.writers = dict.fromkeys(range(2))  # pyright: ignore[reportAttributeAccessIssue]
        server.folders = {0: "a", 1: "b"}
        server.seek(0, "program/1", None)
        server.gone(1, "has ended")
        server.seek(0, "program/2", None)

    assert served(act).sent[1:] == [(0, {"sought": f"program/{i}", "there": False}) for i in (1, 2)]


def test_only_the_compiling_rank_is_asked_for_a_program():
    """Also if it has the same cache folder; not after it is lost."""

    async def act(server: RecordingServer) -> None:
        server.writers = dict.fromkeys(range(3))  # pyright: ignore[reportAttributeAccessIssue]
        server.folders = {0: "a", 1: "a", 2: "b"}
        server.seek(0, "program/1", 1)
        assert server.sent == [(1, {"seek": "program/1", "by": 0})]
        server.has(1, "program/1", 0, True)
        server.gone(1, "has ended")
        server.seek(0, "program/1", 1)

    sought = [message for _, message in served(act).sent if "sought" in message]
    assert sought == [{"sought": "program/1", "there": answer} for answer in (True, False)]
