"""What does it cost to compare the collectives of a large job?

    python benchmarks/control_plane.py

One process compares the collectives of all ranks. Here fake ranks post the 12 collectives of a step, which other ranks
post, too: among all ranks, or in the rows and columns of a mesh. The figures are the CPU time of that process for one
step, without its sockets: the messages as bytes, their parsing, the comparison, and the answers. A rank sends one
message a step, and gets one for each of its groups.

In a large job the messages of ranks go through relays. There the figures are the CPU time of that process, and of the
relay that spends most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from common import Row, exit_with, finish, parser

from lazytpu.distributed.helper import Server
from lazytpu.distributed.ledger import in_ranges
from lazytpu.distributed.relays import Connections, Relay
from lazytpu.distributed.starting import FAN_IN

CALLS = 12
SIZES = (64, 512, 4096)
LARGEST = 100_000
TARGET = 30.0  # ms of 4,096 ranks
SIDE = 64  # ranks of a row, and of a column


class FakeServer(Server):
    """A server of fake ranks: `written` counts the bytes that they would get, and `whole` their answers to launch
    one program."""

    written = whole = 0

    def tell(self, ranks: Sequence[int], message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        for _ in ranks:
            self.written += len(data)
            self.whole += "whole" in message

    def later(self, seconds: float, call: Any) -> None:
        """Never call it: all ranks are there at once."""


def post(step: int, groups: dict[str, Sequence[int]]) -> bytes:
    """The post of a step, which calls the groups in turn. Their members are sent along at first."""
    names = [name for _, name in zip(range(CALLS), cycle(groups), strict=False)]
    calls = [
        [name, f"all_gather float32[{1000 + i}]", f"/home/user/train.py:{100 + i}"] for i, name in enumerate(names)
    ]
    members = {name: in_ranges(ranks) for name, ranks in groups.items()} if step == 0 else {}
    return json.dumps({"post": {"members": members, "calls": calls, "launches": True, "mark": "a" * 32}}).encode()


def of_all(size: int) -> Callable[[int], dict[str, Sequence[int]]]:
    """Return the groups of each rank: one of all ranks."""
    groups: dict[str, Sequence[int]] = {"0": range(size)}
    return lambda rank: groups


def of_mesh(size: int) -> Callable[[int], dict[str, Sequence[int]]]:
    """Return the groups of each rank: its row and its column."""
    columns, every = range(SIDE), range(size)
    return lambda rank: {
        f"row {rank // SIDE}": [rank // SIDE * SIDE + i for i in columns],
        f"column {rank % SIDE}": every[rank % SIDE :: SIDE],
    }


def step_of(size: int, groups: Callable[[int], dict[str, Sequence[int]]], steps: int) -> tuple[float, int, float]:
    """Return the least CPU time of a step in ms, and the bytes that a rank sends and gets. Each rank's message is an
    object of its own, as if it had come by a socket."""
    server = FakeServer(size, "token")
    spent: list[float] = []
    sent, got = 0, 0.0
    for step in range(steps):
        posts: dict[tuple[str, ...], bytearray] = {}
        messages: list[bytes] = []
        for rank in range(size):
            own = groups(rank)
            if (names := tuple(own)) not in posts:
                posts[names] = bytearray(post(step, own))
            messages.append(bytes(posts[names]))
        before = server.written
        start = time.process_time()
        for rank, received in enumerate(messages):
            server.receive((rank,), received)
        spent.append(1e3 * (time.process_time() - start))
        assert server.whole == size * (step + 1), "the step is one program on all ranks"
        sent, got = len(messages[0]), (server.written - before) / size
    return min(spent[1:]), sent, got


@dataclass(eq=False)
class Pipe:
    """One direction of a connection, which keeps its messages."""

    lines: list[bytes] = field(default_factory=list[bytes])

    def write(self, data: bytes, /) -> None:
        self.lines.append(data)

    def is_closing(self) -> bool:
        return False


class Node:
    """The helper, or a relay, with its children: nodes or ranks. `spent` is its CPU time in ms."""

    def __init__(self, connections: Connections, up: Pipe):
        self.connections = connections
        self.up, self.down = up, Pipe()
        self.children: list[Node] = []
        self.ranks: dict[int, Pipe] = {}
        self.spent = 0.0

    def add(self, first: int, span: int, size: int) -> None:
        """Add the relays of `span` ranks, and their children, or the ranks themselves if `span` is 1."""
        for start in range(first, min(first + span * FAN_IN, size), span):
            if span == 1:
                pipe = self.ranks[start] = Pipe()
                self.connections.attach(pipe, json.dumps({"hello": start, "token": "token", "folder": ""}).encode())
                continue
            up = Pipe()
            child = Node(Relay("token", up.write, lambda seconds, call: None), up)
            self.connections.attach(child.down, b'{"relay": "ranks", "token": "token"}')
            self.children.append(child)
            child.add(start, span // FAN_IN, size)
            self.collect(child)

    def collect(self, child: Node) -> int:
        """Take the messages of a child, and return their number."""
        lines, child.up.lines = child.up.lines, []
        for line in lines:
            self.connections.take(child.down, line)
        return len(lines)

    def post(self, line: bytes) -> int:
        """Post a step on all ranks below. Return the number of messages that come to this node."""
        lines = [(pipe, bytes(bytearray(line))) for pipe in self.ranks.values()]
        for child in self.children:
            child.post(line)
        start = time.process_time()
        for pipe, own in lines:
            self.connections.take(pipe, own)
        count = len(lines) + sum(map(self.collect, self.children))
        self.spent = 1e3 * (time.process_time() - start)
        return count

    def answer(self) -> None:
        """Pass on the answers to all ranks below."""
        start = time.process_time()
        if isinstance(self.connections, Relay):
            for line in self.down.lines:
                self.connections.down(line)
            self.spent += 1e3 * (time.process_time() - start)
        self.down.lines.clear()
        for child in self.children:
            child.answer()

    def most(self) -> float:
        """Return the CPU time of the relay below that spends most."""
        return max((max(child.spent, child.most()) for child in self.children), default=0.0)


class QuietServer(Server):
    """A server without timers."""

    def later(self, seconds: float, call: Any) -> None:
        """Never call it: all ranks are there at once."""


def step_behind_relays(size: int, steps: int) -> tuple[float, float, int]:
    """Return the CPU time in ms that the helper, and the busiest relay, spend on a step of ranks behind relays, and the
    number of messages that the helper gets."""
    root = Node(QuietServer(size, "token"), Pipe())
    span = FAN_IN
    while span * FAN_IN < size:
        span *= FAN_IN
    root.add(0, span, size)
    groups: dict[str, Sequence[int]] = {"0": range(size)}
    spent: list[tuple[float, float]] = []
    count = 0
    for step in range(steps):
        for pipe in ranks_of(root):
            pipe.lines.clear()
        count = root.post(post(step, groups) + b"\n")
        root.answer()
        assert all("whole" in json.loads(pipe.lines[-1]) for pipe in ranks_of(root)), "the step is one program"
        spent.append((root.spent, root.most()))
    helper, relay = zip(*spent[1:], strict=True)
    return min(helper), min(relay), count


def ranks_of(node: Node) -> list[Pipe]:
    """Return the connections to all ranks below a node."""
    return [*node.ranks.values(), *(pipe for child in node.children for pipe in ranks_of(child))]


def main() -> int:
    args = parser("control_plane", __doc__).parse_args()
    rows: list[Row] = []
    steps = 3 if args.quick else 30
    for size in SIZES:
        spent, sent, got = step_of(size, of_all(size), steps)
        rows.append(Row(f"a step of {size:,} ranks", spent, "ms", TARGET * size / SIZES[-1]))
    rows += [Row("a rank sends", sent, "B"), Row("a rank gets", got, "B")]
    size = SIZES[-1]
    spent, sent, got = step_of(size, of_mesh(size), steps if args.quick else 10)
    rows.append(Row(f"a step of {size:,} ranks in rows and columns", spent, "ms"))
    rows += [Row("a rank in a row and a column sends", sent, "B"), Row("it gets", got, "B")]
    if not args.quick:
        rows.append(Row(f"a step of {LARGEST:,} ranks", step_of(LARGEST, of_all(LARGEST), 4)[0], "ms"))
    for size in (SIZES[-1],) if args.quick else (SIZES[-1], LARGEST):
        helper, relay, count = step_behind_relays(size, 4)
        rows.append(Row(f"a step of {size:,} ranks behind relays", helper, "ms"))
        rows += [Row("its busiest relay", relay, "ms"), Row("the helper gets", float(count), "messages")]
    return finish("control_plane", rows, args)


if __name__ == "__main__":
    exit_with(main)
