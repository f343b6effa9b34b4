"""The trie stays within its limit, and never loses the path in use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from lazytpu.trace.eviction import STATE_BYTES, Traces
from lazytpu.trace.trie import State


def extend(state: State, *keys: str) -> State:
    for key in keys:
        child = state.next.get((key,))
        if child is None:
            child = State(state, None, None, 0, 0, 0)
            state.add((key,), child)
        state = child
    return state


def count(state: State) -> int:
    return sum(1 + count(child) for child in state.next.values())


def test_old_traces_go_first_and_shared_prefixes_stay() -> None:
    root = State(None, None, None, 0, 0, 0)
    traces = Traces(limit_bytes=20 * STATE_BYTES)
    steady = extend(root, "a", "b", "c")
    for i in range(40):
        traces.ended(steady)
        traces.ended(extend(root, "a", "b", f"x{i}", f"y{i}"))
        assert count(root) <= 24
    assert extend(root, "a", "b", "c") is steady
    assert steady.plan is not None
    assert ("x39",) in root.next["a",].next["b",].next
    assert ("x0",) not in root.next["a",].next["b",].next


def test_the_path_just_cut_survives_a_limit_smaller_than_itself() -> None:
    root = State(None, None, None, 0, 0, 0)
    traces = Traces(limit_bytes=2 * STATE_BYTES)
    traces.ended(extend(root, "p", "q"))
    long = extend(root, *"abcdefgh")
    plan = traces.ended(long)
    assert long.plan is plan
    assert extend(root, *"abcdefgh") is long
    assert "p" not in str(list(root.next))


def test_a_trace_that_ends_inside_another_is_kept_apart() -> None:
    root = State(None, None, None, 0, 0, 0)
    traces = Traces()
    outer = extend(root, "a", "b", "c", "d")
    inner = extend(root, "a", "b")
    traces.ended(outer)
    traces.ended(inner)
    assert traces.states >= 4
    assert outer.plan is not inner.plan


def test_a_state_that_a_more_general_one_replaced_is_evicted_once_without_it() -> None:
    root = State(None, None, None, 0, 0, 0)
    traces = Traces(limit_bytes=16 * STATE_BYTES)
    parent = extend(root, "a")
    replaced = extend(parent, "x[1]", "b")
    traces.ended(replaced)
    first = parent.next["x[1]",]
    parent.remove(first)
    parent.remove(first)
    general = extend(parent, "x[i]", "b")
    again = extend(parent, "x[1]", "c")
    for i in range(16):
        traces.ended(general)
        traces.ended(again)
        traces.ended(extend(root, f"y{i}", "z"))
    assert replaced.plan is None, "it was evicted"
    assert extend(parent, "x[i]", "b") is general
    assert extend(parent, "x[1]", "c") is again, "the state that has its key now stays"
    assert traces.states <= 16


def test_threads_may_evict_at_once() -> None:
    root = State(None, None, None, 0, 0, 0)
    traces = Traces(limit_bytes=20 * STATE_BYTES)

    def record(thread: int) -> None:
        for i in range(300):
            traces.ended(extend(root, "a", f"{i % 7}", f"{thread} {i}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(record, range(4)))
    assert count(root) <= 60
