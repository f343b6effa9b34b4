"""The memory limit is passed to the compiler."""

from __future__ import annotations

import pytest

from lazytpu.engine.compiling.translate import pipeline
from lazytpu.ir.module import options_of
from lazytpu.ir.text import print_module
from lazytpu.passes.limit_memory import LIMIT
from lazytpu.passes.pipeline import PassError, for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

V6E = Target("tpu", "v6e")


def test_limit_is_rounded_down_to_mebibytes() -> None:
    module = parse_main("%x : tensor<4xf32>", "%0 = lazytpu.neg %x : tensor<4xf32>\nfunc.return %0 : tensor<4xf32>")
    before = print_module(module)
    run_pipeline(module, passes="limit-memory{limit=3670016}", verify=True)
    assert options_of(module) == {LIMIT: 3}
    module.attributes.clear()
    assert print_module(module) == before
    run_pipeline(module, passes="limit-memory", verify=True)
    assert print_module(module) == before


def test_less_than_a_mebibyte_is_refused() -> None:
    module = parse_main("%x : tensor<4xf32>", "func.return %x : tensor<4xf32>")
    with pytest.raises(PassError, match="limit is 1000 bytes; expected 0, or at least 1048576"):
        run_pipeline(module, passes="limit-memory{limit=1000}", verify=True)


def test_pass_is_in_the_pipeline_of_tpus_with_a_limit() -> None:
    assert pipeline(V6E, memory_limit=2**30, platform="tpu").endswith(",limit-memory{limit=1073741824}")
    assert pipeline(V6E, memory_limit=2**30, platform="cpu") == for_target(V6E) == pipeline(V6E, platform="tpu")
