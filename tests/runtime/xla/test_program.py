"""Programs: running, donating, failing."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

from lazytpu.runtime.errors import OutOfMemory, RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program

ADD = """func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""

# The first result is larger than any memory, the second reuses the memory of %x.
TOO_LARGE = """func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %s: tensor<f32>)
    -> (tensor<100000x100000x10000xf32>, tensor<4xf32>) {
  %0 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<100000x100000x10000xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<100000x100000x10000xf32>, tensor<4xf32>
}"""


def program(text, **options):
    with client.mlir_context():
        return Program.compile(ir.Module.parse(text), **options)


def ones(*shape, dtype=np.float32):
    return client.to_device(np.ones(shape, dtype))


@pytest.fixture(scope="module")
def add():
    return program(ADD, name="add")


def test_signature_of_main(add):
    f4 = (np.dtype(np.float32), (4,))
    assert add.signature.arguments == (f4, f4)
    assert add.signature.results == (f4,)
    assert add.signature.donated == (0,)
    assert repr(add) == "<Program add: 2 arguments, 1 donated, 1 results>"


def test_donated_argument_becomes_the_result(add):
    x, y = client.to_device(np.arange(4, dtype=np.float32)), ones(4)
    place = client.address(x)
    (result,) = add.run([x, y])
    assert client.is_deleted(x)
    assert not client.is_deleted(y)
    assert client.address(result) == place
    assert client.to_host(result).tolist() == [1, 2, 3, 4]
    assert add.memory.aliased == 16


@pytest.mark.parametrize(("element", "dtype"), [("i64", np.int64), ("f64", np.float64), ("bf16", ml_dtypes.bfloat16)])
def test_arrays_of_every_width_are_donated(element, dtype):
    text = ADD.replace("4xf32", f"1000x{element}")
    adder = program(text)
    x, y = ones(1000, dtype=dtype), ones(1000, dtype=dtype)
    place = client.address(x)
    (result,) = adder.run([x, y])
    assert client.address(result) == place
    assert np.all(client.to_host(result) == 2)


def test_donor_without_a_named_result():
    adder = program(ADD.replace("tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"))
    x = ones(4)
    place = client.address(x)
    (result,) = adder.run([x, ones(4)])
    assert adder.signature.donated == (0,)
    assert client.address(result) == place


def test_view_on_the_host_survives_donation(add):
    x = ones(4)
    view = client.to_host(x, copy=False)
    (result,) = add.run([x, ones(4)])
    assert client.to_host(result).tolist() == [2, 2, 2, 2]
    assert view.tolist() == [1, 1, 1, 1]


def test_steps_in_place(add):
    x, y = ones(4), ones(4)
    for _ in range(100):
        (x,) = add.run([x, y])
    assert client.to_host(x).tolist() == [101] * 4


def test_wait_skips_donated_arrays(add):
    x = ones(4)
    first = add.run([x, ones(4)])
    second = add.run([*first, ones(4)])
    client.wait([x, *first, *second])  # x and first are donated, and skipped
    assert client.to_host(second[0]).tolist() == [3] * 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [ones(4)], "takes 2 arguments, and got 1"),
        (lambda: [ones(4), ones(5)], r"argument 1 must be float32\[4\], and is float32\[5\]"),
        (lambda: [ones(4), ones(2, 2)], r"argument 1 must be float32\[4\], and is float32\[2, 2\]"),
        (lambda: [ones(4), ones(4, dtype=np.int32)], r"argument 1 must be float32\[4\], and is int32\[4\]"),
    ],
)
def test_mismatched_arguments_are_refused(make, words):
    arrays = make()
    with pytest.raises(RunError, match=f"add failed: .*{words}; its arguments are unchanged") as caught:
        program(ADD, name="add").run(arrays)
    assert caught.value.lost == ()
    assert not any(client.is_deleted(a) for a in arrays)


def test_mismatched_arguments_of_a_later_run_are_refused(add):
    add.run([ones(4), ones(4)])
    x = ones(4)
    with pytest.raises(RunError, match=r"argument 1 must be float32\[4\], and is float32\[5\]"):
        add.run([x, ones(5)])
    assert client.to_host(x).tolist() == [1] * 4


def test_donated_array_cannot_be_used_again(add):
    x = ones(4)
    add.run([x, ones(4)])
    with pytest.raises(RunError, match="argument 1 was donated to an earlier run, or deleted"):
        add.run([ones(4), x])


def test_one_array_cannot_be_donated_and_read(add):
    x = ones(4)
    with pytest.raises(RunError, match="previously donated in the same call"):
        add.run([x, x])
    assert client.to_host(x).tolist() == [1] * 4


def test_failed_run_lists_lost_arguments():
    adder = program(TOO_LARGE, name="step 7")
    x, s = ones(4), ones()
    with pytest.raises(
        OutOfMemory, match=r"step 7 failed: RESOURCE_EXHAUSTED: .*; 1 donated arguments are lost"
    ) as caught:
        client.wait(adder.run([x, s]))
    assert caught.value.program == "step 7"
    assert caught.value.lost == (0,)
    assert client.is_deleted(x)
    assert client.to_host(s) == 1


def test_failed_run_keeps_arguments_that_are_not_donated():
    adder = program(TOO_LARGE.replace("{tf.aliasing_output = 1 : i32}", ""))
    x, s = client.to_device(np.arange(4, dtype=np.float32)), ones()
    with pytest.raises(OutOfMemory, match="its arguments are unchanged"):
        client.wait(adder.run([x, s]))
    assert client.to_host(x).tolist() == [0, 1, 2, 3]
    assert client.to_host(s) == 1


def test_device_works_after_a_failure(add):
    with pytest.raises(OutOfMemory):
        client.wait(program(TOO_LARGE).run([ones(4), ones()]))
    assert client.to_host(add.run([ones(4), ones(4)])[0]).tolist() == [2] * 4


def test_memory_comes_from_xlas_analysis():
    text = """func.func @main(%x: tensor<1000x1000xf32>, %y: tensor<1000x1000xf32>) -> tensor<1000xf32> {
      %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] :
        (tensor<1000x1000xf32>, tensor<1000x1000xf32>) -> tensor<1000x1000xf32>
      %1 = stablehlo.slice %0 [5:6, 0:1000] : (tensor<1000x1000xf32>) -> tensor<1x1000xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x1000xf32>) -> tensor<1000xf32>
      return %2 : tensor<1000xf32>
    }"""
    memory = program(text).memory
    assert (memory.arguments, memory.outputs, memory.aliased) == (8_000_000, 4000, 0)
    assert memory.peak == 8_004_000 + memory.temporaries


def test_threads_share_a_program(add):
    results = {}

    def work(start):
        x = client.to_device(np.full(4, start, np.float32))
        for _ in range(50):
            (x,) = add.run([x, ones(4)])
        results[start] = client.to_host(x).tolist()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [n + 50.0] * 4 for n in range(4)}


def test_run_returns_before_the_device_is_done():
    text = """func.func @main(%x: tensor<2000x2000xf32>) -> tensor<2000x2000xf32> {
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] :
        (tensor<2000x2000xf32>, tensor<2000x2000xf32>) -> tensor<2000x2000xf32>
      return %0 : tensor<2000x2000xf32>
    }"""
    adder = program(text)
    x = ones(2000, 2000)
    results = [adder.run([x])[0] for _ in range(3)]
    assert not results[-1].is_ready()
    client.wait(results)
    assert client.to_host(results[-1])[0, 0] == 2000


def test_programs_without_arguments_or_results():
    (number,) = program(
        "func.func @main() -> tensor<i64> { %0 = stablehlo.constant dense<7> : tensor<i64> return %0 : tensor<i64> }"
    ).run([])
    assert client.to_host(number) == 7
    assert program("func.func @main(%x: tensor<f32>) { return }").run([ones()]) == []
