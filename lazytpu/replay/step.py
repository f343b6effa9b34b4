"""`lazytpu.step` and `lazytpu.capture`: functions whose equal calls run as one program, without their Python."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from lazytpu import wiring
from lazytpu.engine.replays import Replay
from lazytpu.frontend.register import activate
from lazytpu.frontend.tensors import STASH, recorder
from lazytpu.frontend.torch_private import is_stashed, thread_stash
from lazytpu.replay.captured import Captured
from lazytpu.replay.family import Seen
from lazytpu.replay.kinds import PATIENCE, Kind, bypassed, kind_of
from lazytpu.replay.observing import Call
from lazytpu.replay.reach import Reach
from lazytpu.replay.refusal import CaptureWarning, Refused
from lazytpu.replay.results import Fresh
from lazytpu.trace.trie import State

KINDS = 64  # kinds of arguments (shapes, dtypes, plain values) that are looked at


class StepFunction:
    """A function whose equal calls are captured. Made by `lazytpu.step`."""

    def __init__(self, function: Callable[..., Any], *, calls: int, verify_every: int, strict: bool):
        functools.update_wrapper(self, function)
        self._function = function
        self._settings = {"calls": calls, "verify_every": verify_every, "strict": strict}
        self._calls, self._verify_every, self._strict = calls, verify_every, strict
        self._lock = threading.RLock()
        self._name: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._root = State(None, None, None, 0, 0, 0)
        self._names: set[str] = set()
        self._hidden: list[torch.optim.Optimizer] = []
        self._kinds: dict[Any, Kind] = {}

    # -- what users see

    @property
    def captures(self) -> int:
        """How many variants are captured now."""
        return sum(len(kind.variants) for kind in self._kinds.values())

    @property
    def replays(self) -> int:
        """How many calls ran captured so far."""
        return self._replays

    @property
    def reason(self) -> str | None:
        """Why the last call did not run captured; None when it did."""
        return self._reason

    _reason: str | None = "it was not called yet"
    _replays = 0

    def forget(self) -> None:
        """Drop all captures, and what is known of earlier calls."""
        with self._lock:
            self._clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mine = thread_stash(STASH) if is_stashed(STASH) else _first()
        if bypassed(mine):
            self._reason = "captures are off here (mode, tracing, another capture, or a torch mode)"
            return self._function(*args, **kwargs)
        key, leaves = kind_of(args, kwargs)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS:
                self._reason = f"more than {KINDS} kinds of arguments"
                return self._function(*args, **kwargs)
            kind = self._kinds[key] = Kind(leaves)
        if kind.refused is not None:
            self._reason = kind.refused
            return self._function(*args, **kwargs)
        if mine.state is not mine.root:
            mine.cut()
        due: Captured | None = None
        with self._lock:
            for variant in list(kind.variants):
                if self._verify_every and variant.replays and variant.replays % self._verify_every == 0:
                    due = variant
                    break
                done, result = variant.attempt(leaves)
                if done:
                    self._reason = None
                    self._replays += 1
                    kind.recordings = 0
                    if kind.variants[0] is not variant:
                        kind.keep(variant)
                    return result
                self._reason = result
            if kind.rest and due is None:
                kind.rest -= 1
                return self._function(*args, **kwargs)
        return self._record(kind, leaves, args, kwargs, due)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method: each instance has a step function of its own, kept in the instance."""
        if instance is None:
            return self
        made = StepFunction(self._function.__get__(instance, owner), **self._settings)
        if self._name is not None and hasattr(instance, "__dict__"):
            made._name = self._name
            instance.__dict__[self._name] = made
        return made

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __deepcopy__(self, memo: dict[int, Any]) -> StepFunction:
        function = self._function
        bound = getattr(function, "__self__", None)
        if bound is not None and id(bound) in memo:
            function = function.__func__.__get__(memo[id(bound)])  # pyright: ignore[reportFunctionMemberAccess]
        return StepFunction(function, **self._settings)

    def __copy__(self) -> StepFunction:
        return StepFunction(self._function, **self._settings)

    def __reduce__(self) -> Any:
        bound = getattr(self._function, "__self__", None)
        return self._function.__qualname__ if bound is None else (getattr, (bound, self._function.__name__))

    def __repr__(self) -> str:
        return f"<lazytpu.step of {getattr(self, '__qualname__', self._function)}: {self.captures} captured>"

    # -- recording

    def _record(self, kind: Kind, leaves: list[Any], args: Any, kwargs: Any, due: Captured | None) -> Any:
        """Run the call as usual, and look at what it did; `due` is a capture to compare it with."""
        expected = due.numbers() if due is not None else None
        call = Call(self._function, leaves, self._names, self._hidden, self._root, recorder())
        result = call.run(args, kwargs, collect=kind.leftover)
        wrong: str | None = None
        refused: str | None = None
        try:
            seen, reach = call.seen(result)
            wrong = due.differs(seen, expected) if due is not None else None
            if due is not None and wrong is not None:
                kind.drop(due)
            self._learn(kind, seen, reach)
        except Refused as error:
            refused = str(error)  # not the error: its traceback holds the call's tensors (R4)
        if refused is not None:
            self._reason = refused
            if due is not None and wrong is None:
                wrong = refused
                kind.drop(due)
            refused = kind.refuse(refused, self._calls)
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        if wrong is not None:
            text = f"lazytpu.step of {name}: a captured call was recorded again, and is another by now: {wrong}. "
            warnings.warn(f"{text}The capture is dropped", CaptureWarning, stacklevel=3)
        if refused is not None and self._strict:
            raise RuntimeError(f"lazytpu.step of {name} cannot be captured: {refused}")
        if refused is not None:
            warnings.warn(f"lazytpu.step of {name} runs uncaptured: {refused}", CaptureWarning, stacklevel=3)
        return result

    def _learn(self, kind: Kind, seen: Seen, reach: Reach) -> None:
        """Count the call, and capture it when it is one of enough. Raises Refused."""
        with self._lock:
            family = kind.family_of(seen)
            family.add(seen)
            kind.refusals = 0
            if kind.recordings > PATIENCE * self._calls:
                raise Refused((kind.variants and self._reason) or kind.why or "no call is like another")
            plan = seen.state.plan
            if family.count >= self._calls and plan is not None:
                engine = wiring.start()
                needed = {w.slot for w in seen.writes} | {each.slot for each in seen.leaves if isinstance(each, Fresh)}
                live = tuple(slot for slot in plan.results if slot in needed)
                compiled = engine.fitting(plan, live, tuple(family.dead))
                if compiled is not None:  # else it is being compiled in the background
                    kind.keep(Captured(family, seen, compiled, Replay(engine, compiled, seen.state), reach))


def _first() -> Any:
    """The recorder of a thread that has none yet."""
    activate()
    return recorder()
