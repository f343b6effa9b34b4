"""Ranks for tests: processes that wait for cases and run each case together."""

from __future__ import annotations

import ast
import json
import os
import select
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import zygote

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # for one case, on a busy machine
STARTING = 60  # seconds
OTHERS = 15.0  # seconds for the other ranks after an error, which they may be waiting for


def free_port() -> int:
    """Return a loopback port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {**os.environ, **{name: str(value) for name, value in ranks.items()}, "MASTER_ADDR": "127.0.0.1"}


class Ranks:
    """`size` processes in a process group. `processes` can be killed; a case that fails gets new ones for the next.
    With `fan_in`, relays of so many ranks are between them and the helper process."""

    def __init__(self, size: int = 2, fan_in: int | None = None):
        self.size = size
        self.fan_in = fan_in
        self._begin()

    def _begin(self) -> None:
        """Start the processes."""
        size, port = self.size, free_port()
        relays = {} if self.fan_in is None else {"FAN_IN": str(self.fan_in)}
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
            path = f"{folder}/ranks"
            listening.bind(path)
            listening.listen(size)
            self.processes = [
                zygote.Process(
                    ["-m", "tests.distributed.worker", path], env=environment(rank, size, port) | relays, cwd=ROOT
                )
                for rank in range(size)
            ]
            connected = [self._accept(listening) for _ in range(size)]
        by_rank: dict[int, tuple[socket.socket, Any]] = {}
        for connection in connected:
            lines = connection.makefile("rw")
            by_rank[json.loads(lines.readline())["rank"]] = connection, lines
        self._connections, self._lines = zip(*(by_rank[rank] for rank in range(size)), strict=True)

    def _accept(self, listening: socket.socket) -> socket.socket:
        listening.settimeout(0.5)
        for _ in range(2 * STARTING):
            try:
                return listening.accept()[0]
            except TimeoutError:
                ended = [process for process in self.processes if process.poll() is not None]
                assert not ended, "\n".join(text for process in ended for text in process.communicate())
        raise AssertionError(f"the ranks have not come together within {STARTING} s")

    def start(self, module: str, case: str, **arguments: Any) -> None:
        """Begin a case on all ranks: a function of a module, with arguments that are valid JSON."""
        request = {"module": f"tests.distributed.cases.{module}", "case": case, "arguments": arguments}
        for lines in self._lines:
            lines.write(json.dumps(request) + "\n")
            lines.flush()

    def has_answer(self, rank: int, seconds: float) -> bool:
        """Return whether a rank has answered, or ended, within some seconds."""
        return bool(select.select([self._connections[rank]], [], [], seconds)[0])

    def has_ended(self, rank: int) -> bool:
        """Return whether a rank has closed its connection without an answer."""
        try:
            return self.has_answer(rank, 0) and not self._connections[rank].recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def answer(self, rank: int, seconds: float = SECONDS) -> dict[str, Any]:
        """Return the result of a case on a rank, or its error."""
        assert self.has_answer(rank, seconds), f"rank {rank} gave no answer within {seconds} s"
        line = self._lines[rank].readline()
        assert line, f"rank {rank} ended: {self.processes[rank].communicate(5)}"
        return json.loads(line)

    def run(self, module: str, case: str, **arguments: Any) -> list[Any]:
        """Run a case on all ranks, and return its result on each. Raises AssertionError with the errors of failing
        ranks, after starting new processes: the group of the old ones may be broken."""
        self.start(module, case, **arguments)
        results: dict[int, Any] = {}
        errors: list[str] = []
        end = time.monotonic() + SECONDS
        while len(results) < self.size:
            pending = {self._connections[rank]: rank for rank in range(self.size) if rank not in results}
            ready, _, _ = select.select(list(pending), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                errors.append(f"no answer of ranks {list(pending.values())}")
                break
            for rank in map(pending.__getitem__, ready):
                try:
                    answer = self.answer(rank)
                except AssertionError as ended:
                    answer = {"error": str(ended)}
                results[rank] = answer.get("result")
                if "error" in answer:
                    errors.append(f"rank {rank}: {answer['error']}")
                    end = min(end, time.monotonic() + OTHERS)
        if errors:
            self.__exit__()
            self._begin()
        assert not errors, "\n".join(errors)
        return [results[rank] for rank in range(self.size)]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: Any) -> None:
        """Kill processes that still run or have stopped."""
        for process in self.processes:
            process.kill()
            process.wait(60)
        for lines, connection in zip(self._lines, self._connections, strict=True):
            with suppress(BrokenPipeError):
                lines.close()
            connection.close()

    def close(self) -> list[int]:
        """End the ranks, and return their exit statuses."""
        for lines, connection in zip(self._lines, self._connections, strict=True):
            lines.close()
            connection.close()
        return [process.wait(60) for process in self.processes]


def cases(module: str) -> list[str]:
    """Return the public functions of a module of cases, which is not imported here."""
    tree = ast.parse((ROOT / f"tests/distributed/cases/{module}.py").read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]
