"""Progress of work that takes minutes, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lazytpu.inspection.terminal import is_terminal
from lazytpu.options import options


@contextmanager
def stages(shown: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Return a context with a function to call with the name of each stage as it begins.

    On a terminal it shows the stage and its seconds in one line, which disappears at the end; elsewhere it prints one
    line per stage. `shown` switches it on or off; by default it is on for terminals and if LAZYTPU_DEBUG is at least 1.
    """
    terminal = is_terminal()
    if not (terminal or options.debug >= 1 if shown is None else shown):
        yield lambda stage: None
    elif not terminal:
        yield lambda stage: print(f"lazytpu: {stage}", file=sys.stderr, flush=True)
    else:
        with Progress(
            SpinnerColumn(),
            TextColumn("lazytpu: {task.description}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # do not redirect output to files
        ) as bar:
            task = bar.add_task("begins")
            yield lambda stage: bar.reset(task, description=escape(stage))
