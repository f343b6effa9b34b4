"""The choice of a strategy for a step without a program, from cost estimates alone."""

from __future__ import annotations

from math import inf

import pytest

from lazytpu.engine.compiling.choice import (
    SAVED,
    SAVED_RARELY,
    SHORT,
    TINY,
    Choice,
    Costs,
    Unknown,
    Way,
    choose,
    naps,
    wait_on,
)


@pytest.mark.parametrize(
    ("costs", "op_by_op", "expected"),
    [
        (Costs(0.5, 0.1, 0.1), 0.0, Choice("whole", 0.5)),  # no second program pays
        (Costs(2.5, 1.0), 9.0, Choice("whole", 2.5)),  # saves less than two seconds
        (Costs(20.0, 16.0), 90.0, Choice("whole", 20.0)),  # saves less than a third
        (Costs(4.0, 1.0), 9.0, Choice("quick", 1.0)),
        (Costs(30.0, inf, 4.0), 90.0, Choice("parts", 4.0)),  # the compiler has no quick mode
        (Costs(30.0, 8.0, 9.0), 90.0, Choice("parts", 9.0)),  # about as soon, and its program runs faster
        (Costs(30.0, 2.0, 9.0), 90.0, Choice("quick", 2.0)),
        (Costs(30.0, 8.0, inf), 1.0, Choice("op by op", 30.0)),  # most ops have programs
        (Costs(30.0, 8.0), 7.5, Choice("quick", 8.0)),
        (Costs(inf, inf, 5.0), 90.0, Choice("parts", 5.0)),  # clusters="meanwhile"
        (Costs(0.3, 0.1, made=True), 0.0, Choice("quick", 0.1)),  # the quick program exists already
    ],
)
def test_fastest_strategy_is_chosen(costs: Costs, op_by_op: float, expected: Choice) -> None:
    assert choose(costs, lambda: op_by_op) == expected


def test_rare_step_prefers_the_quick_program() -> None:
    costs = Costs(2.0, 0.6)
    assert choose(costs, lambda: inf) == Choice("whole", 2.0)
    assert choose(costs, lambda: inf, SAVED_RARELY) == Choice("quick", 0.6)
    assert choose(Costs(0.6, 0.2), lambda: inf, SAVED_RARELY) == Choice("whole", 0.6), "saves less than half a second"


@pytest.mark.parametrize(
    ("slower", "way", "steps"),
    [(0.1, "quick", 29), (2.0, "quick", 2), (0.001, "quick", 100), (0.0, "quick", 2), (0.1, "parts", 2)],
)
def test_rare_step_is_recompiled_once_its_losses_reach_the_compile_time(slower: float, way: Way, steps: int) -> None:
    assert naps(Costs(3.0, 0.5, slower=slower), way) == steps


def test_ops_are_not_estimated_when_the_whole_program_is_quick_to_compile() -> None:
    assert choose(Costs(SAVED / 2), lambda: pytest.fail("asked")) == Choice("whole", SAVED / 2)


def test_step_runs_op_by_op_after_the_limit_if_that_is_sooner() -> None:
    assert wait_on(15.0, 60.0, 20.0) == 15.0, "40 more seconds for the program, 20 for the ops"
    assert wait_on(15.0, 20.0, SHORT) == 15.0, "a few ops"
    assert wait_on(15.0, 20.0, 12.0) == 48.0, "the program is near: it gets four times what the ops would take"
    assert wait_on(60.0, 20.0, 12.0) == 60.0, "the estimate was wrong, and enough was waited"


def test_estimate_of_op_by_op_includes_compiling_the_ops() -> None:
    assert Unknown(100, 1.0).seconds(whole=8.0, load=2.0) == pytest.approx(200 * TINY + 8.0)
    assert Unknown(1, 0.5).seconds(whole=8.0, load=1.0) == pytest.approx(TINY + 4.0)
    assert Unknown(0, 0.0).seconds(whole=inf, load=1.0) == 0.0
