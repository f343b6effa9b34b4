"""Captured state over time: each change is noticed, and unchanged state is not walked again."""

from __future__ import annotations

import builtins
import contextvars
import ctypes
import enum
import functools
import types
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazytpu
from lazytpu.frontend.tensors import value_of
from lazytpu.kernels import captured
from lazytpu.kernels.captured import Captured
from lazytpu.pallas import custom_jax_kernel


class Base:
    level = 1


class Other(Base):
    level = 2


class Slots:
    __slots__ = ("absent", "size")


class Numbers(list[Any]):
    """A list with additional state."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.step = 1


class Computed(dict[str, Any]):
    """A dict that shows items that it does not hold."""

    def items(self) -> Any:
        return [("a", SHOWN[0])]


class Unit(float):
    """A number with additional state."""


class Array(np.ndarray):
    """An array with additional state."""


class Meta(type):
    level = 1


class Classes(metaclass=Meta):
    pass


class Mode(enum.Enum):
    FAST = 1


class Partial(functools.partial[Any]):
    factor = 1

    def __call__(self, x: Any) -> Any:
        return super().__call__(x) * self.factor


class State(Base):
    factor = 2.0

    def __init__(self) -> None:
        self.part, self.slots, self.number = Base(), Slots(), 1
        self.slots.size = 1
        self.lists: list[Any] = [1, [2, {"key": [3.0]}], (4, [5])]
        self.keys: dict[Any, Any] = {"a": 1, 2: {3: 4}, (5, 6): None}
        self.ordered = OrderedDict(a=1, b=1)
        self.default = defaultdict(list, a=[1])
        self.deque, self.set = deque([1, 2]), {1, 2}
        self.array, self.record = np.zeros((2, 3)), np.zeros(1, [("a", "i4")])[0]
        self.objects = np.array([[1], {"a": 1}, None], dtype=object)
        self.bytes, self.numbers = bytearray(b"ab"), Numbers([1])
        self.machine, self.proxied = array("i", [1, 2]), {"a": 1}
        self.proxy = types.MappingProxyType(self.proxied)
        self.computed = Computed()
        self.unit, self.view, self.window = Unit(1), np.zeros(1).view(Array), deque([1], 2)
        self.words = array("i", [0])
        self.get, self.item = self.proxied.get, self.proxied.__getitem__

    def __call__(self, x: Any) -> Any:
        return x * self.factor * self.part.level * self.slots.size * self.number * GLOBAL * MODULE.step * Classes.level

    def method(self, x: Any, *, table: Any = ([1],)) -> Any:
        return x * self.level + helper(x, len(table)) + Mode.FAST.value


def helper(x: Any, y: Any = 1) -> Any:
    return x + y


GLOBAL: Any = 1
SHOWN = [1]
MODULE: Any = types.ModuleType("settings")


def _replace_dict(state: State) -> None:
    state.__dict__ = {**vars(state), "number": 5}


def _other_class(state: State) -> None:
    state.part.__class__ = Other


def _global(name: str, value: Any) -> Callable[[State], None]:
    return lambda state: globals().__setitem__(name, value)


CHANGES: dict[str, Callable[[State], object]] = {
    "attribute": lambda s: setattr(s, "number", 1.0),
    "another type of number": lambda s: setattr(s, "number", True),
    "new attribute": lambda s: setattr(s, "another", 1),
    "no attribute": lambda s: delattr(s, "number"),
    "renamed attribute": lambda s: setattr(s, "renamed", vars(s).pop("computed")),
    "other attributes": _replace_dict,
    "list": lambda s: s.lists.append(1),
    "nested list": lambda s: s.lists[1].__setitem__(0, 2.0),
    "dict in lists": lambda s: s.lists[1][1].update(key=[3]),
    "list in dict in lists": lambda s: s.lists[1][1]["key"].__setitem__(0, -0.0),
    "list in tuple": lambda s: s.lists[2][1].clear(),
    "dict": lambda s: s.keys.update(a=True),
    "key": lambda s: s.keys.update(b=s.keys.pop((5, 6))),
    "nested dict": lambda s: s.keys[2].pop(3),
    "order": lambda s: s.ordered.move_to_end("a"),
    "default": lambda s: s.default["b"],
    "deque": lambda s: s.deque.rotate(),
    "set": lambda s: s.set.add(3),
    "array": lambda s: s.array.__setitem__((1, 2), -0.0),
    "shape of array": lambda s: setattr(s.array, "shape", (3, 2)),
    "dtype of array": lambda s: setattr(s.array, "dtype", np.dtype("i8")),
    "record": lambda s: s.record.__setitem__("a", 1),
    "objects": lambda s: s.objects.__setitem__(2, 0),
    "list in objects": lambda s: s.objects[0].append(1),
    "bytes": lambda s: s.bytes.__setitem__(0, 1),
    "machine numbers": lambda s: s.machine.__setitem__(0, 5),
    "list's attribute": lambda s: setattr(s.numbers, "step", 2),
    "list with attributes": lambda s: s.numbers.append(2),
    "number's attribute": lambda s: setattr(s.unit, "name", 1),
    "number of a class": lambda s: setattr(s, "unit", Unit(2)),
    "array's attribute": lambda s: setattr(s.view, "name", 1),
    "method of a list's class": lambda s: setattr(Numbers, "__call__", lambda self: 1),
    "attribute of a list's class": lambda s: setattr(Numbers, "level", 2),
    "type of numbers": lambda s: setattr(s, "words", array("f", [0])),
    "shape of objects": lambda s: setattr(s.objects, "shape", (3, 1)),
    "default factory": lambda s: setattr(s.default, "default_factory", dict),
    "longest": lambda s: setattr(s, "window", deque([1], 3)),
    "metaclass": lambda s: setattr(Meta, "level", 2),
    "behind a proxy": lambda s: s.proxied.update(a=2),
    "what a class computes": lambda s: SHOWN.__setitem__(0, 2),
    "part": lambda s: setattr(s.part, "level", 3),
    "class": _other_class,
    "class attribute": lambda s: setattr(State, "factor", 3.0),
    "inherited attribute": lambda s: setattr(Base, "level", 3.0),
    "bases": lambda s: setattr(State, "__bases__", (Other,)),
    "method": lambda s: setattr(State, "__call__", lambda self, x: x * self.number),
    "slot": lambda s: setattr(s.slots, "size", 2),
    "slot that was absent": lambda s: setattr(s.slots, "absent", 2),
    "absent slot": lambda s: delattr(s.slots, "size"),
    "global": _global("GLOBAL", None),
    "no global": lambda s: globals().pop("GLOBAL"),
    "module": lambda s: setattr(MODULE, "step", 2),
    "another module": _global("MODULE", types.ModuleType("settings")),
}
OF_METHOD: dict[str, Callable[[State], object]] = {
    "function": _global("helper", lambda x, y: x),
    "builtin": _global("len", lambda x: 1),
    "code": lambda s: setattr(helper, "__code__", (lambda x, y: GLOBAL).__code__),
    "default": lambda s: setattr(helper, "__defaults__", (2,)),
    "keyword default": lambda s: State.method.__kwdefaults__["table"][0].append(2),  # pyright: ignore
    "another keyword default": lambda s: State.method.__kwdefaults__.update(table=()),  # pyright: ignore
    "member of an enumeration": lambda s: setattr(Mode.FAST, "step", 2),
    "function's attribute": lambda s: setattr(helper, "step", 2),
}


@pytest.fixture(autouse=True)
def _restored():
    MODULE.step = 1
    code, members, variables = helper.__code__, dict(vars(State)), dict(globals())
    yield
    SHOWN[0] = 1
    globals().pop("len", None)
    for holder, name in ((Numbers, "__call__"), (Numbers, "level"), (Mode.FAST, "step")):
        if name in vars(holder):
            delattr(holder, name)
    Meta.level = 1
    globals().update(variables)
    helper.__code__, helper.__defaults__ = code, (1,)
    vars(helper).clear()
    State.method.__kwdefaults__ = {"table": ([1],)}  # pyright: ignore[reportFunctionMemberAccess]
    State.__bases__ = (Base,)
    State.factor, State.__call__, Base.level = members["factor"], members["__call__"], 1


def check(function: Any, change: Callable[[], object]) -> None:
    state = Captured(function, "f")
    before = state.now()
    assert state.now() == before
    change()
    after = state.now()
    assert after != before
    assert state.now() is after
    state._last = None  # pyright: ignore[reportPrivateUsage]
    assert state.now() == after


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_an_object(name: str) -> None:
    state = State()
    check(state, lambda: CHANGES[name](state))


@pytest.mark.parametrize("name", OF_METHOD)
def test_changes_of_functions(name: str) -> None:
    state = State()
    check(state.method, lambda: OF_METHOD[name](state))


def test_changes_of_variables() -> None:
    table = [1]

    def inner(x: Any) -> Any:
        return x + step + table[0]  # noqa: F821  (it is assigned below, and deleted)

    captures = Captured(inner, "f")
    absent = captures.now()
    step = 1
    assert (first := captures.now()) != absent
    check(inner, lambda: table.append(1))
    step = True
    assert captures.now() != first
    del step
    table.pop()
    assert captures.now() == absent
    check(functools.partial(helper, y=table), lambda: table.append(1))
    partial = functools.partial(helper, y=table)
    check(partial, lambda: partial.keywords.update(y=2))
    check(partial, lambda: partial.__setstate__((helper, (1,), {}, {})))  # pyright: ignore


def test_changes_of_callables(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = [1]

    @functools.wraps(jnp.sin)
    def of_library_by_name(x: Any) -> Any:
        return x * factor[0]

    check(lambda x: of_library_by_name(x), lambda: factor.append(1))
    get, item, table = factor.__getitem__, factor.count, Partial(helper, 1)
    check(lambda x: get(x), lambda: factor.append(1))
    check(lambda x: item(x), lambda: factor.append(1))
    check(lambda x: table(x), lambda: setattr(table, "factor", 2))
    monkeypatch.setattr(builtins, "steps", 1, raising=False)
    check(lambda x: x * steps, lambda: setattr(builtins, "steps", 2))  # pyright: ignore  # noqa: F821
    settings = types.ModuleType("settings")
    settings.__getattr__ = lambda name: factor[0]  # pyright: ignore[reportAttributeAccessIssue]
    check(lambda x: x * settings.size, lambda: factor.append(1))


HIDDEN = {
    "weak reference": weakref.ref(Base),
    "context variable": contextvars.ContextVar("context", default=1),
    "number in C": ctypes.c_float(1),
    "objects in records": np.zeros(1, [("a", "O")]),
    "iterator of an array": np.zeros(1).flat,
}


@pytest.mark.parametrize("name", HIDDEN)
def test_objects_without_visible_state_are_refused(name: str) -> None:
    hidden = HIDDEN[name]
    with pytest.raises(TypeError, match="may read hidden"):
        Captured(lambda x: x * hidden, "f").now()


def test_unchanged_state_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state, walks = State(), []
    kept = [Captured(function, "f") for function in (state, state.method, helper)]
    keys = [each.now() for each in kept]

    class Counted(captured.Walk):
        def __init__(self, *args: Any) -> None:
            walks.append(self)
            super().__init__(*args)

    monkeypatch.setattr(captured, "Walk", Counted)
    assert all(each.now() is key for each, key in zip(kept, keys, strict=True))
    assert not walks


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_contents_of_a_captured_tensor_count(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = torch.ones(2, 2, device=device)
    kernel = custom_jax_kernel(lambda x: x * float(scale[0, 1]))
    x = torch.ones(3, device="tpu")

    def assigned() -> None:
        scale.data = torch.full((2, 2), 9.0, device=device)

    for change, expected in (
        (lambda: None, 1.0), (lambda: scale.fill_(5), 5.0), (lambda: scale.data.fill_(7), 7.0), (assigned, 9.0),
        (lambda: scale[0].mul_(2), 18.0), (lambda: scale.t_(), 9.0),
    ):  # fmt: skip
        change()
        assert kernel(x).tolist() == [expected] * 3
    walks = 0
    walk = captured.Walk

    def counted(*args: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(*args)

    monkeypatch.setattr(captured, "Walk", counted)
    for _ in range(3):
        assert kernel(x).tolist() == [9.0] * 3
        lazytpu.mark_step()
    assert not walks


def test_captured_device_tensor_is_not_kept_alive() -> None:
    scale = torch.ones(2, device="tpu")
    what = Captured(lambda x: x * scale.item(), "kernel")
    seen = [weakref.ref(value_of(scale))]
    what.now()
    scale.mul_(2)
    lazytpu.sync()
    what.now()
    assert seen[0]() is None
