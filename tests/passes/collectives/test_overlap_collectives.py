"""Compiler options that hide reductions behind compute."""

from __future__ import annotations

import pytest

from lazytpu.ir.module import options_of
from lazytpu.passes.collectives.overlap_collectives import ASYNCHRONOUS, BUCKET
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

MIB = 2**20


def options(passes: str, *sizes: int) -> dict[str, bool | int | str]:
    """Return the compiler options of a module that reduces f32 vectors of these sizes in bytes."""
    types = [f"tensor<{size // 4}xf32>" for size in sizes]
    names = [f"%x{i}" for i in range(len(sizes))]
    arguments = ", ".join(f"{name} : {kind}" for name, kind in zip(names, types, strict=True))
    sums = "\n".join(
        f"%s{i} = lazytpu.all_reduce add {name} groups = [[0, 1]] : ({kind}) -> {kind}"
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    )
    returned = ", ".join(f"%s{i}" for i in range(len(sizes)))
    module = parse_main(arguments, f"{sums}\nfunc.return {returned} : {', '.join(types)}")
    run_pipeline(module, passes=passes, verify=True)
    return options_of(module)


@pytest.mark.parametrize("generation", ASYNCHRONOUS)
def test_large_gradients_are_reduced_asynchronously(generation: str) -> None:
    compile_options = options(f"overlap-collectives{{generation={generation}}}", 6 * MIB, 2 * MIB)
    assert compile_options == {**ASYNCHRONOUS[generation], BUCKET: 4 * MIB}


def test_bucket_size_is_an_option() -> None:
    compile_options = options("overlap-collectives{generation=v6e bucket_bytes=1048576}", 8 * MIB)
    assert compile_options[BUCKET] == MIB


@pytest.mark.parametrize(
    ("passes", "sizes"),
    [
        ("overlap-collectives{generation=v6e}", [4 * MIB, 3 * MIB]),
        ("overlap-collectives{generation=v6e}", [2**15] * 300),
        ("overlap-collectives{generation=tpu7x}", [16 * MIB]),
        ("overlap-collectives", [16 * MIB]),
    ],
    ids=["little in all", "little each", "no options for the generation", "no generation"],
)
def test_other_modules_get_no_options(passes: str, sizes: list[int]) -> None:
    assert options(passes, *sizes) == {}


def test_generation_is_an_option_of_the_pass() -> None:
    assert "overlap-collectives{generation=v6e}" in for_target(Target("tpu", "v6e"))
    assert "collectives" not in for_target(Target("cpu"))
