"""Progress of work that takes minutes, on standard error."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lazytpu.inspection.terminal import is_terminal
from lazytpu.options import options


class Stages:
    """A context manager to call with the name of each stage as it begins.

    On a terminal it shows the stage and its seconds in one line, which disappears at the end; elsewhere it prints one
    line per stage. `shown` switches it on or off; by default it is on for terminals and if LAZYTPU_DEBUG is at least 1.
    """

    def __init__(self, shown: bool | None = None) -> None:
        terminal = is_terminal()
        self._shown = terminal or options.debug >= 1 if shown is None else shown
        self._bar: Progress | None = None
        if self._shown and terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("lazytpu: {task.description}"),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                refresh_per_second=4,
                transient=True,
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # do not redirect output to files
            )
            self._task = self._bar.add_task("begins")

    def __call__(self, stage: str) -> None:
        if self._bar is not None:
            self._bar.reset(self._task, description=escape(stage))
        elif self._shown:
            print(f"lazytpu: {stage}", file=sys.stderr, flush=True)

    def __enter__(self) -> Stages:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
