"""What does it cost to compare the collectives of a large job?

    python benchmarks/control_plane.py

One process compares the collectives of all ranks. Here 4,096 fake ranks post the 12 collectives of a step, which other
ranks post, too. The figures are the CPU time of that process for one step, without its sockets: the messages as bytes,
their parsing, the comparison, and the answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from common import Row, exit_with, finish, parser

from lazytpu.distributed.helper import Server
from lazytpu.distributed.ledger import in_ranges

CALLS = 12
SIZES = (64, 512, 4096)
TARGET = 30.0  # ms of 4,096 ranks


class FakeServer(Server):
    """A server of fake ranks: `written` counts the bytes that they would get."""

    written = 0

    def tell(self, ranks: Iterable[int], message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        for _ in ranks:
            self.written += len(data)

    def later(self, seconds: float, call: Any) -> None:
        """Never call it: all ranks are there at once."""


def post(step: int, size: int) -> bytes:
    """The post of a step, whose members are sent along at first."""
    calls = [["0", f"all_gather float32[{1000 + i}]", f"/home/user/train.py:{100 + i}"] for i in range(CALLS)]
    members = {"0": in_ranges(range(size))} if step == 0 else {}
    return json.dumps({"post": {"members": members, "calls": calls, "launches": True}}).encode()


def milliseconds(size: int, steps: int) -> float:
    """The least CPU time of a step. Each rank's message is an object of its own, as if it had come by a socket."""
    server = FakeServer(size, "token")
    spent: list[float] = []
    for step in range(steps):
        message = bytearray(post(step, size))
        messages = [bytes(message) for _ in range(size)]
        start = time.process_time()
        for rank, received in enumerate(messages):
            server.receive(rank, received)
        spent.append(1e3 * (time.process_time() - start))
        assert server.arbiter.groups["0"].agreed == CALLS * (step + 1)
    return min(spent[1:])


def main() -> int:
    args = parser("control_plane", __doc__).parse_args()
    rows = [
        Row(f"a step of {size:,} ranks", milliseconds(size, 3 if args.quick else 30), "ms", TARGET * size / SIZES[-1])
        for size in SIZES
    ]
    return finish("control_plane", rows, args)


if __name__ == "__main__":
    exit_with(main)
