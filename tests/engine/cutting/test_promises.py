from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.cutting.promises import PromisedCut
from lazytpu.runtime.errors import RunError
from lazytpu.trace.trie import CutPlan


def test_an_error_is_told_though_its_report_fails():
    """The report walks what the script is just changing, on another thread: without the error all would wait."""
    trace: Any = SimpleNamespace(state=None, epoch=0, buffers=[], numbers=[], begun=0.0, mode="lazy")
    cutting: Any = None
    cut = PromisedCut(cutting, Launcher(), lambda trace, held, buffers: None, CutPlan((), ()), trace, [])

    def report(error: Any) -> BaseException:
        raise RuntimeError("dictionary changed size during iteration")

    explained = cut.explained(RunError("program", "RESOURCE_EXHAUSTED: out of memory"), report)
    assert isinstance(explained, RunError)
    assert "dictionary changed size" in str(explained.__notes__)
