"""`lazytpu.step` and `lazytpu.capture`: functions whose equal calls run as one program, without their Python."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

from lazytpu import wiring
from lazytpu.engine.replays import Replay
from lazytpu.frontend.register import activate
from lazytpu.frontend.tensors import STASH, recorder
from lazytpu.frontend.torch_private import is_stashed, thread_stash
from lazytpu.replay.captured import Captured
from lazytpu.replay.family import Family, Seen, difference
from lazytpu.replay.kinds import Kind, bypassed, kind_of
from lazytpu.replay.observing import Call
from lazytpu.replay.refusal import CaptureWarning, Refused
from lazytpu.trace.trie import State

VARIANTS = 16  # captures kept of one kind of arguments, those used last
KINDS = 64  # kinds of arguments (shapes, dtypes, plain values) that are looked at
PATIENCE = 4  # times `calls` recordings of one kind of arguments that lead to no capture


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
            for family, variant in list(kind.variants.items()):
                if self._verify_every and variant.replays and variant.replays % self._verify_every == 0:
                    due = variant
                    break
                done, result = variant.attempt(leaves)
                if done:
                    self._reason = None
                    self._replays += 1
                    kind.recordings = 0
                    if len(kind.variants) > 1:
                        kind.variants[family] = kind.variants.pop(family)
                        kind.variants = {family: variant, **kind.variants}
                    return result
                self._reason = result
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
        """Run the call as usual, and look at what it did."""
        engine = wiring.start()
        expected = due.numbers() if due is not None else None
        call = Call(self._function, leaves, self._names, self._root, recorder())
        if kind.leftover:
            gc.collect()
        result = call.run(args, kwargs)
        refused: Refused | None = None
        try:
            seen, reach = call.seen(result)
            if due is not None:
                self._verify(kind, due, seen, expected)
            self._learn(kind, seen, reach, engine)
        except Refused as error:
            refused = error
        if refused is not None:
            if due is not None:
                self._drop(kind, due, str(refused))
            self._refuse(kind, refused)
        return result

    def _learn(self, kind: Kind, seen: Seen, reach: Any, engine: Any) -> None:
        with self._lock:
            key = seen.key()
            family = kind.families.get(key)
            if family is None:
                family = kind.families[key] = Family(seen)
                if kind.last is not None:
                    kind.why = difference(kind.last, seen)
            kind.last = seen
            kind.recordings += 1
            family.add(seen)
            kind.refusals = 0
            if kind.recordings > PATIENCE * self._calls:
                raise Refused((kind.variants and self._reason) or kind.why or "no call is like another")
            if family.count >= self._calls:
                compiled = fitting(engine, seen, family.dead)
                if compiled is not None:
                    kind.variants[key] = Captured(family, seen, compiled, Replay(engine, compiled, seen.state), reach)
                    while len(kind.variants) > VARIANTS:
                        del kind.variants[next(reversed(kind.variants))]

    def _verify(self, kind: Kind, due: Captured, seen: Seen, expected: Any) -> None:
        due.replays += 1
        if seen.state is not due.family.first.state:
            self._drop(kind, due, difference(due.family.first, seen))
        elif isinstance(expected, tuple) and repr(expected[0]) != repr(seen.numbers):
            self._drop(kind, due, "a number is not what was computed for it")

    def _drop(self, kind: Kind, due: Captured, why: str) -> None:
        kind.variants = {key: v for key, v in kind.variants.items() if v is not due}
        kind.families.clear()
        self._warn(f"a captured call was recorded again, and is another by now: {why}. The capture is dropped")

    def _refuse(self, kind: Kind, refused: Refused) -> None:
        self._reason = str(refused)
        kind.leftover = "still alive" in self._reason
        kind.refusals += 1
        if kind.refusals >= self._calls or kind.recordings > PATIENCE * self._calls:
            kind.refused = self._reason
            kind.families.clear()
            if self._strict:
                raise RuntimeError(f"{self!r} cannot be captured: {self._reason}")
            self._warn(f"runs uncaptured: {self._reason}")

    def _warn(self, text: str) -> None:
        warnings.warn(f"lazytpu.step of {self._function.__qualname__} {text}", CaptureWarning, stacklevel=4)


def _first() -> Any:
    """The recorder of a thread that has none yet."""
    activate()
    return recorder()


def fitting(engine: Any, seen: Seen, dead: frozenset[int]) -> Any:
    """A compiled program of the call's trace that computes what it left and takes no memory that lives on."""
    plan = seen.state.plan
    needed = {w.slot for w in seen.writes} | {getattr(leaf, "slot", None) for leaf in seen.leaves}
    return engine.fitting(plan, tuple(needed.intersection(plan.results)), tuple(dead)) if plan is not None else None
