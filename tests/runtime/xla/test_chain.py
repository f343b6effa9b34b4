"""Chains of programs: values passed on, donation, freed memory, and the state after a failure."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from lazytpu.runtime.errors import OutOfMemory, RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.chain import Call, Chain, Plan
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import Signature

ADD = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
# Overwrites the memory of its first argument.
INTO = ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}")
F4 = (np.dtype(np.float32), (4,))


def program(text: str, name: str) -> Program:
    with client.mlir_context():
        return Program.compile(ir.Module.parse(text), name=name)


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [program(ADD, "add"), program(INTO, "into")]


def chain_of(programs: list[Program]) -> Chain:
    """x, w -> (3 x, w + 3 x): x + x, x + that (overwriting it), w + that (overwriting w)."""
    calls = (Call(0, (0, 0), ()), Call(1, (2, 0), (2, 0)), Call(1, (1, 3), (1,)))
    return Chain(programs, Plan(calls, (3, 4), Signature((F4, F4), (F4, F4), (1,))), name="step")


def arrays() -> list[Any]:
    return [client.to_device(np.arange(4, dtype=np.float32)), client.to_device(np.ones(4, np.float32))]


def test_results_follow_the_calls(programs: list[Program]) -> None:
    chain, inputs = chain_of(programs), arrays()
    place = client.address(inputs[1])
    tripled, sums = chain.run(inputs)
    assert client.to_host(tripled).tolist() == [0, 3, 6, 9]
    assert client.to_host(sums).tolist() == [1, 4, 7, 10]
    assert [client.is_deleted(buffer) for buffer in inputs] == [False, True]
    assert client.address(sums) == place
    assert repr(chain) == "<Chain step: 3 calls of 2 programs, 2 arguments, 1 donated, 2 results>"


def test_constants_distinguish_calls_of_one_program(programs: list[Program]) -> None:
    constants = tuple(np.full(4, number, np.float32) for number in (10, 100))
    calls = (Call(0, (0, 1), ()), Call(0, (3, 2), (3,)))
    chain = Chain(programs, Plan(calls, (4,), Signature((F4,), (F4,), ()), constants))
    for _ in range(2):
        (result,) = chain.run(arrays()[:1])
        assert client.to_host(result).tolist() == [110, 111, 112, 113]


def test_unneeded_values_are_freed(programs: list[Program], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (Call(0, (0, 0), ()), Call(0, (1, 1), (1,)), Call(0, (2, 2), (2,)))
    chain = Chain(programs, Plan(calls, (3,), Signature((F4,), (F4,), ())))
    references: list[weakref.ref[Any]] = []
    alive: list[int] = []
    real = Program.run

    def run(self: Program, given: Any) -> Any:
        alive.append(sum(ref() is not None for ref in references))
        results = real(self, given)
        references.extend(map(weakref.ref, results))
        return results

    monkeypatch.setattr(Program, "run", run)
    (result,) = chain.run(arrays()[:1])
    assert alive == [0, 1, 1], "each call sees what the one before it made, and nothing older"
    assert client.to_host(result).tolist() == [0, 8, 16, 24]


def test_memory_is_the_peak_over_the_calls(programs: list[Program]) -> None:
    memory = chain_of(programs).memory
    assert (memory.arguments, memory.outputs, memory.aliased) == (32, 32, 16)
    assert memory.temporaries == sum(p.memory.temporaries for p in programs[:1])
    calls = (Call(0, (0, 0), ()), Call(0, (0, 0), ()), Call(0, (1, 2), (1, 2)))
    two_on_the_way = Chain(programs, Plan(calls, (3,), Signature((F4,), (F4,), ()))).memory
    assert two_on_the_way.temporaries == 32 + programs[0].memory.temporaries


@pytest.mark.parametrize("at", [0, 1, 2])
def test_failed_start_names_the_part(programs: list[Program], monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    chain, inputs, count = chain_of(programs), arrays(), iter(range(9))
    real = Program.run

    def run(self: Program, arrays: Any) -> Any:
        if next(count) == at:
            raise RunError(self.name, "RESOURCE_EXHAUSTED: no room")
        return real(self, arrays)

    monkeypatch.setattr(Program, "run", run)
    with pytest.raises(OutOfMemory, match=rf"step failed: part {at + 1} of 3 \(\w+\): RESOURCE_EXHAUSTED") as caught:
        chain.run(inputs)
    assert caught.value.lost == ()
    assert not any(client.is_deleted(buffer) for buffer in inputs)


def test_arguments_of_earlier_calls_are_lost(programs: list[Program], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (Call(1, (1, 0), (1,)), Call(0, (0, 0), ()))
    chain = Chain(programs, Plan(calls, (2, 3), Signature((F4, F4), (F4, F4), (1,))), name="step")
    real = Program.run

    def run(self: Program, arrays: Any) -> Any:
        if self.name == "add":
            raise RunError(self.name, "INTERNAL: the device is on fire")
        return real(self, arrays)

    monkeypatch.setattr(Program, "run", run)
    with pytest.raises(RunError, match="1 donated arguments are lost") as caught:
        chain.run(arrays())
    assert caught.value.lost == (1,)
