"""Symbolic sizes: each operation computes a form, keeps a guard, or raises."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from xdsl.ir import Block

import lazytpu
from lazytpu.aten.symbolic_ints import from_torch, to_torch
from lazytpu.ir.builder import Builder
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import Derivation, LostSize, Reciprocal, Size, number_at_bound, respelled, spelled
from lazytpu.ir.types import shape_of, tensor_type

RANGES = {"n": (2, 23), "m": (3, 17)}
LOST: dict[str, Callable[[Any], Any]] = {
    "range": range,
    "repetition": lambda n: [0] * n,
    "an index": lambda n: [1, 2, 3][n],
    "a slice": lambda n: [1, 2, 3][:n],
    "operator.index": operator.index,
    "math.gcd": lambda n: math.gcd(n, 4),
    "int": int,
    "float": float,
    "round": round,
    "a key": lambda n: {n: 1},
    "a set": lambda n: {n, 4},
    "a text": lambda n: f"{n}",
    "a quotient": lambda n: 3 / n,
    "a half": lambda n: n / 2,
    "a float": lambda n: n * 0.5,
    "a large power": lambda n: n**9,
    "a shift": lambda n: n << 1,
    "bits": lambda n: n & 1,
    "a mask": lambda n: ~n,
    "a power of two": lambda n: 1 << n,
    "an exponent": lambda n: 2**n,
    "its length in bits": lambda n: n.bit_length(),
    "its parts": lambda n: n.as_integer_ratio(),
    "numpy": lambda n: np.zeros(n),
    "numpy's integers": lambda n: np.array([n, 4], dtype=np.int64),
    "log": math.log,
}


@pytest.fixture
def derivation() -> Iterator[Derivation]:
    with Derivation(RANGES) as derivation:
        yield derivation


@pytest.mark.parametrize("name", LOST)
def test_a_size_in_c_code_is_refused(derivation: Derivation, name: str) -> None:
    with pytest.raises(LostSize, match="would fix it to"):
        LOST[name](derivation.size(symbol("n")))


def test_a_size_as_an_argument_of_torch_is_refused(derivation: Derivation) -> None:
    with pytest.raises(TypeError, match="not Size"):
        torch.empty(derivation.size(symbol("n")))


def computed(choose: random.Random, leaves: list[Any], depth: int) -> Any:
    """A random expression of these leaves and small numbers, with comparisons that choose between branches."""
    if not depth or choose.random() < 0.15:
        return choose.choice([*leaves, choose.randrange(1, 9)])
    x, y = (computed(choose, leaves, depth - 1) for _ in range(2))
    divisor = choose.choice([1, 2, 3, 5, 8])
    return choose.choice(
        [
            lambda: x + y, lambda: x - y, lambda: x * y, lambda: -x, lambda: x // divisor, lambda: x % divisor,
            lambda: max(x, y), lambda: min(x, y), lambda: abs(x), lambda: sorted([x, y])[0],
            lambda: x if x % divisor == 0 else y, lambda: x if x < y else x + 1, lambda: divmod(x, divisor)[1],
            lambda: x // y if y > 0 and x >= 0 else x, lambda: x % y if y > 0 and x >= 0 else y,
        ]
    )()  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_expressions_equal_integers_where_guards_hold(seed: int) -> None:
    with Derivation(RANGES) as derivation:
        try:
            got = computed(random.Random(seed), [derivation.size(symbol(name)) for name in RANGES], 4)
        except LostSize:  # a quotient of two sizes that is no form
            return
    served = 0
    for n in range(RANGES["n"][0], RANGES["n"][1] + 1):
        for m in range(RANGES["m"][0], RANGES["m"][1] + 1):
            sizes = {"n": n, "m": m}
            if all(guard.at(sizes) for guard in derivation.guards):
                served += 1
                want = computed(random.Random(seed), [n, m], 4)
                assert (got.form.at(sizes) if isinstance(got, Size) else got) == want, (got, sizes)
    assert served, "a guard fails at the bound"


def test_comparison_decided_by_ranges_keeps_no_guard(derivation: Derivation) -> None:
    n = derivation.size(symbol("n"))
    assert n < 24
    assert n + 1 != n
    assert (n + 1) // 2 >= 1
    assert n in (1, n)
    assert not derivation.guards
    assert n % 2 == 1
    assert [str(guard) for guard in derivation.guards] == ["n-2*(n)/2-1 == 0"]
    (guard,) = derivation.guards
    assert [size for size in range(2, 8) if guard.at({"n": size})] == [3, 5, 7]
    assert type(guard).parse(guard.fields) == guard


def test_types_and_properties_keep_forms(derivation: Derivation) -> None:
    n = derivation.size(symbol("n"))
    block = Block(arg_types=[tensor_type("f32", (n, 4))])
    b, (x,) = Builder(block), block.args
    assert [getattr(size, "form", size) for size in shape_of(b.slice(x, (1, 0), (n, 4)))] == [symbol("n") - 1, 4]
    assert tensor_type("f32", (n, 4)) is tensor_type("f32", (n, 4))
    assert shape_of(b.reshape(x, (n * 4,)))[0].form == symbol("n") * 4
    with pytest.raises((ValueError, LostSize)):
        b.reshape(x, (n * 4 + 1,))
    assert b.broadcast_to(x, (n, 4)) is x


def test_constant_that_its_dtype_cannot_hold_is_refused(derivation: Derivation) -> None:
    b, n = Builder(Block()), derivation.size(symbol("n"))
    b.constant(n * 5, "i8")
    for number, dtype in ((n * 12, "i8"), (-n, "ui8"), (n * (1 << 30), "f32"), (n, "c64")):
        with pytest.raises((ValueError, LostSize)):
            b.constant(number, dtype)


def test_reciprocals_of_means(derivation: Derivation) -> None:
    n = derivation.size(symbol("n"))
    reciprocal, two = 1 / n, 2 / n
    assert isinstance(reciprocal, Reciprocal)
    assert (reciprocal.value, str(reciprocal.form)) == (1 / 23, "2*n")
    assert (two.value, str(two.form)) == (2 / 23, "n")


def test_messages_name_the_size_at_run_time(derivation: Derivation) -> None:
    message = f"index is out of bounds with size {spelled(derivation.size(symbol('n') + 1))} of {spelled(4)}"
    assert respelled(message, {"n": 9}) == "index is out of bounds with size 10 of 4"


def test_torch_computes_with_sizes(derivation: Derivation) -> None:
    n, m = (derivation.size(symbol(name)) for name in RANGES)
    x = torch.empty(to_torch((n, 4, m)), device="meta")
    assert from_torch(x.shape) == (n, 4, m)
    assert from_torch(x.stride())[0].form == symbol("m") * 4
    with enable_python_dispatcher():
        assert from_torch(x.view(-1, to_torch(m)).shape)[0].form == symbol("n") * 4
        assert from_torch(x[: (x.shape[0] + 1) // 8].shape)[0].form == (symbol("n") + 1) // 8
        assert from_torch(torch.cat([x, x], 2).shape)[2].form == symbol("m") * 2
    with pytest.raises(LostSize):
        list(range(x.shape[0]))


def test_only_ir_types_reads_the_shape_of_a_type() -> None:
    """Code that reads a type by xDSL's own method gets the sizes at the bound."""
    package = Path(lazytpu.__file__).parent
    readers = [path for path in package.rglob("*.py") if ".get_shape(" in path.read_text()]
    assert readers == [package / "ir" / "types.py"]


def test_number_at_the_bound(derivation: Derivation) -> None:
    assert number_at_bound(derivation.size(symbol("n") + symbol("m"))) == 40
    assert number_at_bound(7) == 7


def test_undecidable_quotient_is_the_quotient_at_the_bound() -> None:
    derivation = Derivation({"n": (2, 16)})
    n = derivation.size(symbol("n"))
    assert (100 * n) // (100 * (n // 2)) == 2
    for size in range(2, 17):
        same = all(guard.at({"n": size}) for guard in derivation.guards)
        assert not same or 100 * size // (100 * (size // 2)) == 2
    assert all(guard.at({"n": 16}) for guard in derivation.guards) and derivation.guards
