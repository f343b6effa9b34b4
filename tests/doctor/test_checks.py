"""The checks themselves, in this process: all checks that need neither a separate process nor libtpu."""

from __future__ import annotations

import pytest

from lazytpu.doctor.check import CHECKS, load

load()
FAMILIES = ("transfers", "memory", "lowerings", "kernels", "training")
# Each takes seconds of compilation, and its subject has tests elsewhere; the first needs an idle machine.
LEFT_OUT = {"memory.asynchronous runs", "lowerings.binomial", "lowerings.poisson", "lowerings.standard_gamma"}
LEFT_OUT |= {"training.strict", "training.debug", "training.bfloat16"}


@pytest.mark.parametrize("key", [k for k, check in CHECKS.items() if check.family in FAMILIES and k not in LEFT_OUT])
def test_check_works(key: str) -> None:
    assert CHECKS[key].run()
