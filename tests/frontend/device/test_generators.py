"""Generators of the device: a (seed, offset) pair on the host."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazytpu.frontend.device import generators
from lazytpu.frontend.device.generators import draw, drawing_nothing


def test_the_facade_creates_the_devices_generator() -> None:
    g = torch.Generator("tpu")
    assert g.device == torch.device("tpu", 0)
    assert isinstance(g, torch.Generator)
    assert torch.Generator(device=torch.device("tpu")).device.type == "tpu"
    cpu = torch.Generator()
    assert cpu.device.type == "cpu"
    assert isinstance(cpu, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.equal(torch.rand(3, generator=cpu.manual_seed(3)), torch.rand(3, generator=cpu.manual_seed(3)))


def test_draws_advance_the_offset() -> None:
    g = torch.Generator("tpu").manual_seed(11)
    assert [draw(g), draw(g)] == [(11, 0), (11, 1)]
    state = g.get_state()
    assert state.dtype is torch.uint8
    assert state.device.type == "cpu"
    assert draw(g) == (11, 2)
    assert draw(g.set_state(state)) == (11, 2)
    assert g.initial_seed() == 11
    assert g.get_offset() == 3
    g.manual_seed(-1)
    assert draw(g) == (2**64 - 1, 0)


def test_seed_is_new_each_time() -> None:
    g = torch.Generator("tpu")
    assert g.seed() != g.seed()
    assert 0 <= g.initial_seed() < 2**64


def test_seed_out_of_range() -> None:
    with pytest.raises(RuntimeError, match=r"in \[-2\*\*63, 2\*\*64\)"):
        torch.Generator("tpu").manual_seed(2**64)


@pytest.mark.parametrize("state", [torch.zeros(15, dtype=torch.uint8), torch.zeros(16), None])
def test_state_of_another_kind(state: object) -> None:
    with pytest.raises(TypeError, match="ByteTensor of 16 bytes"):
        torch.Generator("tpu").set_state(state)  # type: ignore[arg-type]


def test_copies_continue_the_stream_on_their_own() -> None:
    g = torch.Generator("tpu").manual_seed(5)
    draw(g)
    for copied in (copy.deepcopy(g), pickle.loads(pickle.dumps(g)), g.clone_state(), g.graphsafe_get_state()):
        assert draw(copied) == (5, 1)
        assert draw(copied) == (5, 2)
    assert draw(g) == (5, 1)


def test_generator_of_another_device() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        draw(torch.Generator())


def test_a_generator_is_known_by_its_native_part() -> None:
    """A kernel gets a different Python object for the same generator."""
    seen: list[Any] = []
    library = torch.library.Library("lazytpu_generators", "DEF")
    library.define("f(Tensor x, Generator? g=None) -> Tensor")
    library.impl("f", lambda x, g=None: (seen.append(g), x.clone())[1], "CPU")
    g = torch.Generator("tpu").manual_seed(7)
    torch.ops.lazytpu_generators.f(torch.ones(1), g)
    assert draw(seen[0]) == (7, 0)
    assert g.get_offset() == 1


def test_device_draws_leave_the_cpu_generator_alone() -> None:
    before = torch.get_rng_state()
    draw()
    draw(generators.default_generator)
    torch.Generator("tpu").seed()
    assert torch.equal(before, torch.get_rng_state())


def test_threads_never_draw_the_same() -> None:
    g = torch.Generator("tpu").manual_seed(1)
    drawn: list[tuple[int, int]] = []
    threads = [threading.Thread(target=lambda: drawn.extend(draw(g) for _ in range(500))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(drawn)) == 2000


def test_draws_that_are_taken_back_disturb_no_other_thread() -> None:
    state, drawn = torch.tpu.get_rng_state(), list[tuple[int, int]]()
    thread = threading.Thread(target=lambda: drawn.append(draw()))
    with drawing_nothing():
        first = draw()
        thread.start()
        thread.join(0.02)
        assert draw() == (first[0], first[1] + 1)
        assert not drawn
    thread.join()
    assert drawn == [first]
    assert draw() == (first[0], first[1] + 1)
    torch.tpu.set_rng_state(state)


DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "randperm": lambda g: torch.randperm(50, generator=g, device="tpu"),
    "randint": lambda g: torch.randint(1000, (9,), generator=g, device="tpu"),
    "rand_like": lambda g: torch.rand_like(torch.ones(9, device="tpu"), generator=g),
    "randn_like": lambda g: torch.randn_like(torch.ones(9, device="tpu"), generator=g),
    "normal": lambda g: torch.normal(torch.zeros(9, device="tpu"), 1.0, generator=g),
    "normal of numbers": lambda g: torch.normal(0.0, 1.0, (9,), generator=g, device="tpu"),
    "normal_": lambda g: torch.empty(9, device="tpu").normal_(generator=g),
    "uniform_": lambda g: torch.empty(9, device="tpu").uniform_(generator=g),
    "exponential_": lambda g: torch.empty(9, device="tpu").exponential_(generator=g),
    "random_": lambda g: torch.empty(9, device="tpu").random_(generator=g),
    "cauchy_": lambda g: torch.empty(9, device="tpu").cauchy_(generator=g),
    "geometric_": lambda g: torch.empty(50, device="tpu").geometric_(0.1, generator=g),
    "log_normal_": lambda g: torch.empty(9, device="tpu").log_normal_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((50,), 0.5, device="tpu"), generator=g),
    "bernoulli_": lambda g: torch.empty(50, device="tpu").bernoulli_(0.5, generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device="tpu"), 9, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((50,), 5.0, device="tpu"), generator=g),
    "trunc_normal_": lambda g: torch.nn.init.trunc_normal_(torch.empty(3, 3, device="tpu"), generator=g),
    "kaiming_uniform_": lambda g: torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device="tpu"), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_op_draws_from_the_generator_it_is_given(name: str) -> None:
    draw, default = DRAWS[name], torch.tpu.get_rng_state()
    g = torch.Generator("tpu").manual_seed(5)
    state = g.get_state()
    first, second = draw(g).tolist(), draw(g).tolist()
    assert first != second
    g.set_state(state)
    assert draw(g).tolist() == first
    assert draw(g.clone_state()).tolist() == second
    assert torch.equal(torch.tpu.get_rng_state(), default)


def test_fork_rng_restores_the_device() -> None:
    state = torch.tpu.get_rng_state()
    with torch.random.fork_rng(device_type="tpu"):
        torch.manual_seed(1)
        torch.rand(2, device="tpu")
    assert torch.equal(torch.tpu.get_rng_state(), state)
