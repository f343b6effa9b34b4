"""Compiler options that hide communication behind compute."""

from __future__ import annotations

import pytest
from xdsl.ir import Operation

from lazytpu.ir.collectives import AllGatherOp, AllReduceOp, ReduceScatterOp
from lazytpu.ir.module import options_of
from lazytpu.passes.collectives.overlap_collectives import ASYNCHRONOUS, BUCKET, WORTHWHILE
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

MIB = 2**20


OPS = {
    AllReduceOp: ("lazytpu.all_reduce add {} groups = [[0, 1]] : ({x}) -> {x}", 1),
    AllGatherOp: ("lazytpu.all_gather {} dim = 0 groups = [[0, 1]] : ({x}) -> {y}", 2),
    ReduceScatterOp: ("lazytpu.reduce_scatter add {} dim = 0 groups = [[0, 1]] : ({y}) -> {x}", 0.5),
}


def options(passes: str, *sizes: int, kind: type[Operation] = AllReduceOp) -> dict[str, bool | int | str]:
    """Return the compiler options of a module that communicates f32 vectors, the larger side of which has these sizes
    in bytes."""
    text, growth = OPS[kind]
    longer, shorter = ([f"tensor<{size // 4 // by}xf32>" for size in sizes] for by in (1, 2))
    taken = shorter if growth > 1 else longer
    returned = shorter if growth < 1 else longer
    arguments = ", ".join(f"%x{i} : {type_of}" for i, type_of in enumerate(taken))
    x, y = (longer, longer) if growth == 1 else (shorter, longer)
    lines = [f"%s{i} = {text.format(f'%x{i}', x=x[i], y=y[i])}" for i in range(len(sizes))]
    names = ", ".join(f"%s{i}" for i in range(len(sizes)))
    module = parse_main(arguments, "\n".join([*lines, f"func.return {names} : {', '.join(returned)}"]))
    run_pipeline(module, passes=passes, verify=True)
    return options_of(module)


@pytest.mark.parametrize(("generation", "kind"), [(name, kind) for name in ASYNCHRONOUS for kind in ASYNCHRONOUS[name]])
def test_large_tensors_travel_asynchronously(generation: str, kind: type[Operation]) -> None:
    passes = f"overlap-collectives{{generation={generation}}}"
    least = WORTHWHILE[kind]
    assert options(passes, least // 2, least // 2, kind=kind) == {**ASYNCHRONOUS[generation][kind], BUCKET: 4 * MIB}
    assert options(passes, least // 2, least // 4, kind=kind) == {}


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
