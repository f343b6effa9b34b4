"""The checks themselves, in this process: those that need no process of their own, and no libtpu."""

from __future__ import annotations

import pytest

from lazytpu.doctor.check import CHECKS, load

load()
FAMILIES = ("transfers", "memory", "lowerings", "kernels", "training")
# Seconds of compiling each, and what they are about has tests of its own; the first wants the machine for itself.
LEFT_OUT = {"memory.asynchronous runs", "lowerings.binomial", "lowerings.poisson", "lowerings.standard_gamma"}
LEFT_OUT |= {"training.strict", "training.debug", "training.bfloat16"}


@pytest.mark.parametrize("key", [k for k, check in CHECKS.items() if check.family in FAMILIES and k not in LEFT_OUT])
def test_it_works(key: str) -> None:
    assert CHECKS[key].run()
