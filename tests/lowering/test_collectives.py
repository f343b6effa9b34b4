"""Collectives, on four devices of one child process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

from lazytpu.aten.collectives import own_part
from lazytpu.ir.builder import Builder
from lazytpu.ir.groups import Groups, MeshGroups, mesh_groups
from lazytpu.ir.module import add_options, set_replicas
from lazytpu.ir.text import parse_module, print_module
from lazytpu.ir.types import numel, shape_of
from lazytpu.lowering import emit
from lazytpu.lowering.errors import LoweringError
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.errors import CompileError
from lazytpu.runtime.xla.module_options import options_of, replicas_of
from lazytpu.runtime.xla.program import Program
from tests.lowering import replicas
from tests.lowering.harness import Build, module_of

Rows = np.ndarray

ALL = [[0, 1, 2, 3]]
MIXED = [[2, 0], [1, 3]]
COLUMNS = MeshGroups((2, 2), (0,))
ROWS = MeshGroups((2, 2), (1,))
LINE = MeshGroups((4,), (0,))
TURNED = MeshGroups((2, 2), (1, 0))
ALONE = MeshGroups((4, 1), (1,))
RANK = {2: 0, 0: 1, 1: 0, 3: 1}
X = np.arange(4 * 4 * 2, dtype=np.float32).reshape(4, 4, 2) - 9
NUMBERS = np.arange(4 * 4, dtype=np.int32).reshape(4, 4) % 7


def of_group(x: Rows, combine: Callable[[list[Rows], int], Any], groups: Groups) -> Rows:
    """Return the result of `combine(rows of the group, rank)` on each device."""
    combined = {d: combine([x[e] for e in group], rank) for group in groups for rank, d in enumerate(group)}
    return np.stack([combined[device] for device in range(4)])


def part(x: Any, rank: int, parts: int, dim: int = 0) -> Rows:
    return np.split(x, parts, dim)[rank]


CASES: dict[str, tuple[Build, Rows, list[Rows]]] = {
    "all_reduce add": (lambda b, x: b.all_reduce("add", [x], ALL), X, [of_group(X, lambda g, r: sum(g), ALL)]),
    "all_reduce max in pairs": (
        lambda b, x: b.all_reduce("max", [x], MIXED),
        NUMBERS,
        [of_group(NUMBERS, lambda g, r: np.maximum(*g), MIXED)],
    ),
    "all_reduce of a bucket of two dtypes": (
        lambda b, x: b.all_reduce("add", [x, b.convert(x, "i32"), b.neg(x)], ALL),
        X,
        [of_group(X, lambda g, r, c=c: c(sum(g)), ALL) for c in (np.array, np.int32, np.negative)],
    ),
    "all_gather": (lambda b, x: b.all_gather(x, 1, MIXED), X, [of_group(X, lambda g, r: np.concatenate(g, 1), MIXED)]),
    "reduce_scatter": (
        lambda b, x: b.reduce_scatter("add", x, 0, MIXED),
        X,
        [of_group(X, lambda g, r: part(sum(g), r, 2), MIXED)],
    ),
    "all_to_all": (
        lambda b, x: b.all_to_all(x, 0, 1, MIXED),
        X,
        [of_group(X, lambda g, r: np.concatenate([part(replica, r, 2) for replica in g], 1), MIXED)],
    ),
    "collective_permute": (
        lambda b, x: b.collective_permute(x, [[0, 1], [1, 3], [3, 0]]),
        X,
        [np.stack([X[3], X[0], np.zeros_like(X[0]), X[1]])],
    ),
    "along an axis of a mesh": (
        lambda b, x: [
            b.all_reduce("add", [x], COLUMNS)[0],
            b.all_gather(x, 0, TURNED),
            b.reduce_scatter("add", x, 0, COLUMNS),
            b.all_to_all(x, 0, 0, TURNED),
        ],
        X,
        [
            of_group(X, lambda g, r: sum(g), COLUMNS),
            of_group(X, lambda g, r: np.concatenate(g), TURNED),
            of_group(X, lambda g, r: part(sum(g), r, 2), COLUMNS),
            of_group(X, lambda g, r: np.concatenate([part(replica, r, 4) for replica in g]), TURNED),
        ],
    ),
    "along axes of several meshes": (
        lambda b, x: [
            b.all_reduce("add", [x], ROWS)[0],
            b.all_reduce("add", [x], LINE)[0],
            b.all_gather(x, 0, COLUMNS),
            b.all_gather(x, 0, LINE),
        ],
        X,
        [
            of_group(X, lambda g, r: sum(g), ROWS),
            of_group(X, lambda g, r: sum(g), LINE),
            of_group(X, lambda g, r: np.concatenate(g), COLUMNS),
            of_group(X, lambda g, r: np.concatenate(g), LINE),
        ],
    ),
    "along an axis of one device": (
        lambda b, x: [
            b.all_reduce("add", [x], ALONE)[0],
            b.all_gather(x, 0, ALONE),
            b.reduce_scatter("add", x, 0, ALONE),
            b.all_to_all(x, 0, 0, ALONE),
        ],
        X,
        [X, X, X, X],
    ),
    "own_part": (
        lambda b, x: [own_part(b, x, 0, 2, 0, (), (2, 2), (0,)), own_part(b, x, 1, 1, 0, (), (2, 2), (1,))],
        X,
        [
            np.stack([part(X[device], rank, 2) for device, rank in enumerate((0, 0, 1, 1))]),
            np.stack([part(X[device], rank, 2, 1) for device, rank in enumerate((0, 1, 0, 1))]),
        ],
    ),
    "group_rank in a mesh": (
        lambda b, x: [b.add(b.group_rank(groups), b.reshape(x, [])) for groups in (COLUMNS, TURNED, ALONE)],
        np.zeros((4, 1), np.int32),
        [np.array(ranks, np.int32) for ranks in ([0, 0, 1, 1], [0, 2, 1, 3], [0, 0, 0, 0])],
    ),
    "group_rank": (
        lambda b, x: [b.add(b.group_rank(MIXED), b.reshape(x, [])), b.group_rank(ALL)],
        np.zeros((4, 1), np.int32),
        [np.array([RANK[d] for d in range(4)], np.int32), np.arange(4, dtype=np.int32)],
    ),
}


def sharded_step(b: Builder, x: SSAValue) -> object:
    """Average gradients over all devices, where each device uses only its own rows."""
    (total,) = b.all_reduce("add", [x], ALL)
    mean = b.mul(total, b.constant(0.25, "f32", (4, 2)))
    start = b.mul(b.group_rank(ALL), b.constant(1, "i32"))
    return b.dynamic_slice(b.sub(x, mean), [start, b.constant(0, "i32")], (1, 2))


def flat_step(b: Builder, x: SSAValue) -> list[SSAValue]:
    """Gather two parameters in one buffer, and reduce-scatter their gradients in another one, which is kept."""
    weight, bias = b.slice(x, (0, 0), (2, 2)), b.reshape(b.slice(x, (2, 0), (3, 2)), (2,))
    buffer = b.concatenate([b.reshape(weight, (4,)), bias], 0)
    gathered = b.all_gather(b.reshape(buffer, (1, 6)), 0, MIXED)
    weights = b.reshape(b.slice(gathered, (0, 0), (2, 4)), (4, 2))
    biases = b.reshape(b.slice(gathered, (0, 4), (2, 6)), (4,))
    rows = b.concatenate([b.reshape(b.mul(weights, weights), (2, 4)), b.reshape(b.neg(biases), (2, 2))], 1)
    total = b.convert(b.reshape(b.reduce_scatter("add", rows, 0, MIXED), (6,)), "f64")
    mean = b.div(total, b.constant(3.0, "f64", (6,)))
    scattered = [b.reshape(b.slice(mean, (0,), (4,)), (2, 2)), b.slice(mean, (4,), (6,)), mean]
    return [weights, biases, *scattered, *bucket(b, weights, biases)]


def bucket(b: Builder, *gradients: SSAValue) -> list[SSAValue]:
    """Reduce gradients that are written into one buffer, and copied out of it."""
    buffer, start, places = b.constant(0.0, "f32", (12,)), 0, list[tuple[int, int]]()
    for gradient in reversed(gradients):
        flat = b.reshape(gradient, (numel(shape_of(gradient)),))
        buffer = b.dynamic_update_slice(buffer, flat, [b.constant(start, "i32")])
        places.append((start, start := start + numel(shape_of(gradient))))
    (total,) = b.all_reduce("add", [buffer], ALL)
    sums = [b.slice(total, (first,), (end,)) for first, end in places]
    return [b.reshape(sums[1], (4, 2)), sums[0], total]


def module_for_all(build: Build, x: Rows):
    module = module_of(build, ("f32" if x.dtype == np.float32 else "i32", x.shape[1:]))
    set_replicas(module, 4)
    return module


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Rows]]:
    """Return the results of all cases, from one process."""
    folder: Path = tmp_path_factory.mktemp("replicas")
    before, after = module_for_all(sharded_step, X), module_for_all(sharded_step, X)
    run_pipeline(after, passes="shard-reductions,dce", verify=True)
    assert "reduce_scatter" in print_module(after)
    assert "all_reduce" not in print_module(after)
    flat, apart, all_apart = (module_for_all(flat_step, X) for _ in range(3))
    run_pipeline(apart, passes="own-shapes{part_bytes=16}", verify=True)
    run_pipeline(all_apart, passes="own-shapes{part_bytes=1}", verify=True)
    for collective in ("reduce_scatter", "all_reduce"):
        assert [print_module(module).count(collective) for module in (flat, apart, all_apart)] == [1, 2, 2]
    assert "-> tensor<2x2xf32>" in print_module(apart)
    modules = {name: (module_for_all(build, x), x) for name, (build, x, _) in CASES.items()}
    compared = {"whole": before, "in parts": after, "flat": flat, "apart": apart, "all apart": all_apart}
    for name, (module, x) in {**modules, **{name: (module, X) for name, module in compared.items()}}.items():
        (folder / f"{name}.mlir").write_text(print_module(module))
        np.savez(folder / f"{name}.npz", arg0=x)
    subprocess.run([sys.executable, replicas.__file__, str(folder)], check=True, timeout=120)
    by_case: dict[str, list[Rows]] = {}
    for path in folder.glob("*.out.npz"):
        with np.load(path) as results:
            by_case[path.name.removesuffix(".out.npz")] = [results[f"result{i}"] for i in range(len(results.files))]
    return by_case


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, ran: dict[str, list[Rows]]) -> None:
    for actual, expected in zip(ran[name], CASES[name][2], strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


def test_shard_reductions_keeps_the_results_of_each_device(ran: dict[str, list[Rows]]) -> None:
    mean = X.sum(0) / 4
    expected = np.stack([X[d, d : d + 1] - mean[d : d + 1] for d in range(4)])
    np.testing.assert_array_equal(ran["whole"][0], expected)
    np.testing.assert_array_equal(ran["in parts"][0], expected)


@pytest.mark.parametrize("name", ["apart", "all apart"])
def test_own_shapes_keep_the_results_of_each_device(name: str, ran: dict[str, list[Rows]]) -> None:
    weights = of_group(X, lambda g, r: np.concatenate([x[:2] for x in g]), MIXED)
    np.testing.assert_array_equal(ran["flat"][0], weights)
    gradient = of_group(weights, lambda g, r: part(sum(w * w for w in g), r, 2).astype(np.float64) / 3, MIXED)
    np.testing.assert_array_equal(ran["flat"][2], gradient)
    np.testing.assert_array_equal(ran["flat"][5], of_group(weights, lambda g, r: sum(g), ALL))
    for actual, expected in zip(ran[name], ran["flat"], strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_module_declares_its_number_of_devices() -> None:
    with pytest.raises(LoweringError, match="devices 0 to 3 take part, but the module is for 1: expected its"):
        emit(module_of(CASES["all_gather"][0], ("f32", (4, 2))))
    assert replicas_of(emit(module_for_all(CASES["all_gather"][0], X))) == 4


def test_compile_options_are_part_of_the_module() -> None:
    module = module_for_all(CASES["all_gather"][0], X)
    add_options(module, {"flag": True, "number": 1})
    add_options(module, {"number": 2, "word": "AUTO"})
    emitted = emit(parse_module(print_module(module)))
    assert options_of(emitted) == {"flag": True, "number": 2, "word": "AUTO"}
    assert options_of(emit(module_for_all(CASES["all_gather"][0], X))) == {}


def test_compilers_read_the_options_of_the_module() -> None:
    module = module_of(lambda b, x: b.neg(x), ("f32", (2,)))
    add_options(module, {"xla_no_such_option": True})
    with pytest.raises(CompileError, match="No such compile option: 'xla_no_such_option'"):
        Program.compile(emit(module))


def test_text_of_mesh_groups_does_not_grow_with_the_devices() -> None:
    def sizes(devices: int) -> tuple[int, int]:
        module = module_of(lambda b, x: b.all_reduce("add", [x], MeshGroups((devices // 16, 16), (0,))), ("f32", (4,)))
        set_replicas(module, devices)
        return len(print_module(module)), len(str(emit(module)))

    small, large = sizes(256), sizes(65_536)
    assert all(after - before < 20 for before, after in zip(small, large, strict=True))


def test_mesh_groups() -> None:
    mesh = {"data": 2, "model": 3}
    assert mesh_groups(mesh, ["data"]) == [[0, 3], [1, 4], [2, 5]]
    assert mesh_groups(mesh, ["model"]) == [[0, 1, 2], [3, 4, 5]]
    assert mesh_groups(mesh, ["model", "data"]) == [[0, 3, 1, 4, 2, 5]]
    assert mesh_groups(mesh, []) == [[0], [1], [2], [3], [4], [5]]
    with pytest.raises(ValueError, match=r"axes are \['rows'\]; expected distinct axes of the mesh"):
        mesh_groups(mesh, ["rows"])
