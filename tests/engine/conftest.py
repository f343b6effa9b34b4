"""Fixtures: an empty program cache for each test, and a gate that holds compilations in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling import choice


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet(empty_cache: Path) -> None:
    """These tests count or delay compilations, so the programs of other tests must not be used."""


@pytest.fixture(autouse=True)
def no_sizes_were_seen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of other tests must not form a shape family with the traces of this one."""
    from lazytpu.engine.launching.uploads import UPLOADS
    from lazytpu.engine.sizes.every import Templates

    compiler = wiring.start().compiler
    monkeypatch.setattr(compiler, "templates", Templates(compiler.inference))
    UPLOADS.forget()


class Gate:
    """A barrier before the background compiler: compilations wait until the gate opens, and then raise `error` if it
    is set. `asked` has the number of recorded ops of each program that reached the gate."""

    def __init__(self, build: Callable[[Any], Any]):
        self.asked: list[int] = []
        self.error: Exception | None = None
        self._build = build
        self._opened = threading.Event()

    def build(self, prepared: Any) -> Any:
        self.asked.append(len(prepared.records))
        assert self._opened.wait(120)
        if self.error is not None:
            raise self.error
        return self._build(prepared)

    def open(self) -> None:
        """Open the gate and wait for all compilations; from here on cuts wait for their programs."""
        lazytpu.options.background_compile = 120
        self._opened.set()
        for job in wiring.start().background.unfinished():
            assert job.done.wait(120)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A closed gate; cuts of fused mode wait a millisecond for it, and then run op by op."""
    engine = wiring.start()
    gate = Gate(engine.background.build)
    monkeypatch.setattr(engine.background, "build", gate.build)
    monkeypatch.setattr(choice, "SHORT", 1e9)  # seconds of compiling ops: no step is too long for that
    with lazytpu.options(background_compile=0.001):
        yield gate
    gate.open()
