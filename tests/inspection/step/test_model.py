"""The model of a step: fusion, times, memory."""

from __future__ import annotations

import pytest

from lazytpu.inspection.step.model import LEAST, PRODUCTS, SCALAR, VECTOR, Model
from lazytpu.inspection.step.reading import read
from lazytpu.inspection.tpu.collectives import seconds as collective_seconds
from lazytpu.passes.generations import GENERATIONS
from tests.inspection.step.samples import CLUSTERS, STEP

V6E = GENERATIONS["v6e"]


@pytest.fixture
def model() -> Model:
    return Model(read(STEP), V6E)


def body(arguments: str, *lines: str, returned: str) -> Model:
    kind = returned.split(" : ")[1]
    text = "\n".join([f"func.func @main({arguments}) -> ({kind}) {{", *lines, f"func.return {returned}", "}"])
    return Model(read(text), V6E)


def test_ops_join_the_kernel_of_their_users(model: Model) -> None:
    """The product's kernel includes the ops on its result, up to a value with two readers; the update's includes the
    second one."""
    assert [[op.number for op in kernel.ops] for kernel in model.kernels] == [[0, 1, 2], [3], [4, 5, 6]]
    assert [kernel.main.number for kernel in model.kernels] == [0, 3, 5]
    assert [kernel.needs for kernel in model.kernels] == [[], [0], [0]]


def test_a_kernel_has_one_product() -> None:
    dot = "lhs_contract = [1] rhs_contract = [0] precision = default : (tensor<8x8xf32>, tensor<8x8xf32>)"
    estimate = body(
        "%x: tensor<8x8xf32>",
        f"%0 = lazytpu.dot_general %x, %x {dot} -> tensor<8x8xf32>",
        f"%1 = lazytpu.dot_general %0, %x {dot} -> tensor<8x8xf32>",
        returned="%1 : tensor<8x8xf32>",
    )
    assert [len(kernel.ops) for kernel in estimate.kernels] == [1, 1]


def test_values_recomputed_in_each_kernel_cost_their_operands() -> None:
    estimate = body(
        "%x: tensor<8x8xf32>",
        "%0 = lazytpu.reduce add %x dims = [0] : (tensor<8x8xf32>) -> tensor<8xf32>",
        "%1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<8xf32>) -> tensor<8x8xf32>",
        "%2 = lazytpu.sub %x, %1 : tensor<8x8xf32>",
        "%3 = lazytpu.mul %x, %1 : tensor<8x8xf32>",
        returned="%2, %3 : tensor<8x8xf32>, tensor<8x8xf32>",
    )
    assert [kernel.needs for kernel in estimate.kernels] == [[], [0]]
    kernel = estimate.kernels[1]
    assert (sum(kernel.reads.values()), kernel.written) == (4 * (64 + 8), 4 * 2 * 64)  # one read for both results
    assert 1 not in {op.number for kernel in estimate.kernels for op in kernel.ops}


def test_an_update_is_one_kernel_with_the_product_of_its_gradient() -> None:
    """As in the TPU's compiler: the parameter and both moments are read and written once, the gradient never."""
    kind, dot = "tensor<256x256xf32>", "lhs_contract = [0] rhs_contract = [0] precision = default"
    estimate = body(
        f"%x: {kind}, %w: {kind}, %m: {kind}, %v: {kind}",
        f"%0 = lazytpu.dot_general %x, %x {dot} : ({kind}, {kind}) -> {kind}",
        f"%1 = lazytpu.add %m, %0 : {kind}",
        f"%2 = lazytpu.mul %0, %0 : {kind}",
        f"%3 = lazytpu.add %v, %2 : {kind}",
        f"%4 = lazytpu.div %1, %3 : {kind}",
        f"%5 = lazytpu.sub %w, %4 : {kind}",
        returned=f"%5, %1, %3 : {kind}, {kind}, {kind}",
    )
    (kernel,) = estimate.kernels
    assert sorted(op.number for op in kernel.outputs) == [1, 3, 5]
    assert (sum(kernel.reads.values()), kernel.written) == (4 * 256 * 256 * 4, 4 * 256 * 256 * 3)


def test_kernels_between_which_another_must_run_stay_apart() -> None:
    kind, dot = "tensor<256x256xf32>", "lhs_contract = [1] rhs_contract = [0] precision = default"
    estimate = body(
        f"%x: {kind}",
        f"%0 = lazytpu.dot_general %x, %x {dot} : ({kind}, {kind}) -> {kind}",
        f"%1 = lazytpu.dot_general %0, %x {dot} : ({kind}, {kind}) -> {kind}",
        f"%2 = lazytpu.add %0, %1 : {kind}",
        returned=f"%2 : {kind}",
    )
    assert [[op.number for op in kernel.ops] for kernel in estimate.kernels] == [[0], [1, 2]]
    assert [kernel.needs for kernel in estimate.kernels] == [[], [0]]


def test_clusters_do_not_fuse() -> None:
    assert [len(kernel.ops) for kernel in Model(read(CLUSTERS), V6E).kernels] == [2, 2, 1]


def test_times(model: Model) -> None:
    first, middle, last = model.kernels
    assert middle.seconds == LEAST / V6E.clock and middle.bound == "latency"  # its operands are on the chip
    read = 4 * (4096 * 256 + 256 * 128)
    assert (sum(first.reads.values()), first.written) == (read, 4 * 4096 * 128)
    products, other_ops = 2 * 4096 * 256 * 128 * 6 / (PRODUCTS * V6E.flops), 4096 * 128 / (VECTOR * V6E.lane_rate)
    assert first.bound == "matrix unit" and first.seconds == pytest.approx(products + other_ops)
    assert first.seconds > read / V6E.hbm_bandwidth  # it has arrived by then
    assert (first.start, middle.start, last.start) == (0.0, first.end, middle.end)
    assert model.seconds == last.end and model.exposed == pytest.approx(0.0)
    ops = model.as_dict()["ops"]
    assert sum(op["seconds"] for op in ops) == pytest.approx(model.seconds)
    waiting = sum(op["seconds"] for op in ops if op["line"] is None)
    assert waiting == pytest.approx(first.waited + last.waited)


def test_the_longest_chain(model: Model) -> None:
    assert [entry["op"] for entry in model.as_dict()["path"]] == ["dot_general.0", "dot_general.2"]


def test_memory(model: Model) -> None:
    """The update is in the weight's memory; activations live until the update, and the loss to the end."""
    arguments = 4 * (4096 * 256 + 256 * 128)
    hidden = 4 * 4096 * 128
    assert model.memory == [arguments + hidden, arguments + hidden + 4, arguments + hidden + 4]


def test_collectives_run_beside_the_core() -> None:
    """The product that does not read the sum runs meanwhile; the other one waits for it."""
    kind, dot = "tensor<2048x2048xf32>", "lhs_contract = [1] rhs_contract = [0] precision = default"
    estimate = body(
        f"%x: {kind}, %g: {kind}",
        f"%0 = lazytpu.all_reduce add %g groups = [[0, 1, 2, 3]] : ({kind}) -> {kind}",
        f"%1 = lazytpu.dot_general %x, %x {dot} : ({kind}, {kind}) -> {kind}",
        f"%2 = lazytpu.dot_general %0, %x {dot} : ({kind}, {kind}) -> {kind}",
        returned=f"%1, %2 : {kind}, {kind}",
    )
    (total,) = (kernel for kernel in estimate.kernels if kernel.lane == "links")
    beside, after = (kernel for kernel in estimate.kernels if kernel.lane == "core")
    assert total.seconds == collective_seconds("all-reduce", 4 * 2048**2, 4, V6E) and total.bound == "links"
    assert beside.start == 0.0 and after.start == total.end > beside.end
    assert estimate.exposed == pytest.approx(total.end - beside.end)


def test_single_numbers_cost_next_to_nothing() -> None:
    kind = "tensor<f32>"
    estimate = body(f"%x: {kind}", f"%0 = lazytpu.exp %x : {kind}", returned=f"%0 : {kind}")
    assert estimate.seconds == pytest.approx(SCALAR / V6E.clock, rel=1e-3)


def test_large_tensors_are_bound_by_memory() -> None:
    kind = "tensor<4096x4096xf32>"
    estimate = body(f"%x: {kind}", f"%0 = lazytpu.exp %x : {kind}", returned=f"%0 : {kind}")
    (kernel,) = estimate.kernels
    assert kernel.bound == "HBM" and kernel.seconds == pytest.approx(8 * 4096**2 / V6E.hbm_bandwidth)
