from __future__ import annotations

from typing import Any

from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.deferred_cut import DeferredCut
from lazytpu.engine.cutting.launcher import Launcher
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.runtime.errors import RunError
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan


def test_error_is_raised_even_if_its_report_fails():
    """The report reads dictionaries that another thread may change. If it raised, waiting threads would hang."""
    nothing: Any = None
    trace = Trace(nothing, 0, [], [], [], 0.0)
    cut = DeferredCut(nothing, nothing, Launcher(), Strategy(), Cut(CutPlan((), ()), trace, [], (), ()))

    def report(error: Any) -> BaseException:
        raise RuntimeError("dictionary changed size during iteration")

    explained = cut.explained(RunError("program", "RESOURCE_EXHAUSTED: out of memory"), report)
    assert isinstance(explained, RunError)
    assert "dictionary changed size" in str(explained.__notes__)
