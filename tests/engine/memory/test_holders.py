"""lazytpu.memory(holders=True): the variables, lists and attributes that hold tensors."""

from __future__ import annotations

import gc
import io
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from torch import nn

import lazytpu
from lazytpu.runtime.buffers.buffer import MEMORY


@pytest.fixture(autouse=True)
def quiet() -> None:
    lazytpu.sync()
    gc.collect()


class Keeper:
    def __init__(self) -> None:
        self.history: dict[str, list[torch.Tensor]] = {"loss": []}


KEPT: list[torch.Tensor] = []


def test_report_names_the_holders_of_tensors() -> None:
    keeper, losses = Keeper(), [torch.ones(3, 7).to("tpu") for _ in range(3)]
    keeper.history["loss"] += [torch.ones(5, 7).to("tpu") for _ in range(2)]
    single = torch.ones(11, 7).to("tpu")
    KEPT.append(torch.ones(13, 7).to("tpu"))
    layer = nn.Linear(17, 7).to("tpu")
    here = "test_report_names_the_holders_of_tensors()"
    try:
        report = lazytpu.memory(holders=True)
    finally:
        KEPT.clear()
    paths = {value.shape[0]: value.holder for value in report.values if value.shape[1:] == (7,)}
    assert paths[11] == f"single in {here}"
    assert paths[13] == f"{__name__}.KEPT[0]"
    held = report.by_holder()
    assert held[f"losses in {here}"].values == 3
    assert held["Keeper.history['loss']"].nbytes == 2 * 4 * 5 * 7
    assert "Keeper.history['loss']" in str(report)
    assert "layer" not in str(held)  # a module's parameters have names
    assert all(value.holder is None for value in lazytpu.memory().values)
    del single, layer, losses


def test_search_for_holders_keeps_nothing_alive() -> None:
    kept = torch.ones(1000).to("tpu")
    lazytpu.memory(holders=True)
    before = MEMORY.live
    del kept
    assert MEMORY.live == before - 4000


def fresh() -> torch.Tensor:
    return torch.ones(19, 7).to("tpu")


class Trainer:
    def __init__(self) -> None:
        self.last = fresh()
        self.history = [fresh() for _ in range(3)]


CONTAINERS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "a": (lambda: {"last": fresh(), "history": [fresh() for _ in range(5)]}, {"": 1, "['history']": 5}),
    "b": (lambda: [fresh(), [fresh(), fresh()], (fresh(),)], {"": 1, "[1]": 2, "[2]": 1}),
    "c": (lambda: [fresh(), [fresh(), [fresh(), [fresh()]]]], {"": 1, "[1]": 1, "[1][1]": 1, "[1][1][1]": 1}),
    "d": (lambda: {"a[b]": fresh(), "c] in d()": fresh(), "it's": fresh()}, {"": 3}),
    "e": (lambda: {"a[b]": [fresh(), fresh()]}, {"['a[b]']": 2}),
}


def test_containers_hold_tensors_directly_and_through_others() -> None:
    a, b, c, d, e = kept = [make() for make, _ in CONTAINERS.values()]
    kept.clear()
    held = lazytpu.memory(holders=True).by_holder()
    where = " in test_containers_hold_tensors_directly_and_through_others()"
    found = {path: amount.values for path, amount in held.items() if path.endswith(where)}
    expected = {name + path: n for name, (_, paths) in CONTAINERS.items() for path, n in paths.items()}
    assert found == {path + where: n for path, n in expected.items()}
    assert a and b and c and d and e


def test_object_holds_tensors_directly_and_through_others() -> None:
    trainer = Trainer()
    held = lazytpu.memory(holders=True).by_holder()
    assert (held["Trainer.last"].values, held["Trainer.history"].values) == (1, 3)
    assert trainer.history


class Registry:
    newest: torch.Tensor | None = None
    history: ClassVar[list[torch.Tensor]] = []


def test_attributes_of_a_class_are_holders() -> None:
    Registry.newest = fresh()
    Registry.history += [fresh(), fresh()]
    try:
        held = lazytpu.memory(holders=True).by_holder()
    finally:
        Registry.newest = None
        Registry.history.clear()
    name = f"{__name__}.Registry"
    assert (held[f"{name}.newest"].values, held[f"{name}.history"].values) == (1, 2)


def test_attributes_of_a_class_that_no_variable_names() -> None:
    class Outer:
        class Inner:
            history: ClassVar[list[torch.Tensor]] = [fresh(), fresh()]

    held = lazytpu.memory(holders=True).by_holder()
    (path,) = [path for path in held if path.endswith("Outer.Inner.history")]
    assert held[path].values == 2
    assert Outer.Inner.history


def batches() -> Iterator[int]:
    batch = [fresh(), fresh()]
    yield from range(len(batch))


def fail() -> None:
    lost = fresh()
    raise ZeroDivisionError(lost.shape)


def test_functions_that_do_not_run_are_holders() -> None:
    suspended = batches()
    next(suspended)
    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    held = lazytpu.memory(holders=True).by_holder()
    assert held["batch in batches(), which is suspended"].values == 2
    assert held["lost in fail(), which has ended (a traceback keeps it)"].values == 1
    before = MEMORY.live
    del suspended, raised
    assert MEMORY.live == before - 3 * 4 * 19 * 7, "the search keeps none of them"


def test_containers_that_hold_each_other_are_searched_once() -> None:
    ring: list[Any] = [fresh()]
    other = [ring, fresh()]
    ring.append(other)
    held = lazytpu.memory(holders=True).by_holder()
    where = "test_containers_that_hold_each_other_are_searched_once()"
    assert (held[f"ring in {where}"].values, held[f"other in {where}"].values) == (1, 1)


def test_modules_are_no_holders_while_their_objects_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    this = sys.modules[__name__]  # a variable whose value is a module
    gc.freeze()
    kept = [fresh()]  # not frozen
    monkeypatch.setattr(this, "LATEST", kept[0], raising=False)
    try:
        held = lazytpu.memory(holders=True).by_holder()
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as after collection (tests/conftest.py)
    assert not [path for path in held if path.startswith("module.")]


def test_keys_are_printed_as_they_are() -> None:
    kept = {key: [fresh(), fresh()] for key in ("[/b]", "loss[train]", "[bold]x", ":smile:", "\\[a]")}
    report = lazytpu.memory(holders=True)
    console = Console(file=io.StringIO(), width=200)
    console.print(report)  # with rich's markup, as in a notebook
    for key in kept:
        assert f"kept[{key!r}]" in str(report)
        assert f"kept[{key!r}]" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_search_takes_as_long_for_many_tensors_as_for_few() -> None:
    def seconds(count: int) -> float:
        kept = [torch.empty(1, device="tpu") for _ in range(count)]
        lazytpu.sync()
        began = time.process_time()
        lazytpu.memory(holders=True)
        assert len(kept) == count
        return time.process_time() - began

    assert seconds(3000) < 4 * min(seconds(10), seconds(10)), "a linear search takes 20 times as long"


class Hostile(type):
    """A class whose attributes cannot be read."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


def call(*_: Any) -> Any:
    raise RuntimeError("the search calls methods of the program")


class Slotted:
    __slots__ = ("x",)


def test_search_calls_no_method_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {"__getattribute__": call, "__eq__": call, "__hash__": call, "__format__": call, "__radd__": call}
    kept = [
        type("Property", (), {"__slots__": ("x",), "__dict__": property(call)})(),
        type("Slots", (), {"y": Slotted.__dict__["x"]})(),
        type.__call__(Hostile("Meta", (), {})),
        type("Module", (), {"__module__": type("Name", (), hostile)()}),
    ]
    for holder in kept:
        (type if isinstance(holder, type) else object).__setattr__(holder, "x", fresh())
    # A loader may import a lazy module when an attribute is read.
    lazy = type("Lazy", (ModuleType,), {"__getattribute__": call})("lazy")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(globals(), 1, "a variable without a name")  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(globals(), type("Text", (str,), {"__radd__": call})("text"), "another one")
    variables: Any = type("Variables", (), {"__getitem__": lambda _, name: globals()[name], "__setitem__": call})()
    exec("lazytpu.memory(holders=True)", dict(globals()), variables)
    held = lazytpu.memory(holders=True).by_holder()
    assert {"Property.x", "Slots.x", "Meta.x", "Module.x"} <= held.keys()


def test_search_keeps_the_variables_that_exec_made() -> None:
    kept = 3
    exec("y = 5")
    lazytpu.memory(holders=True)
    assert eval("y + kept") == 8
    assert kept == 3


def test_search_in_an_evaluated_expression_keeps_its_variables() -> None:
    kept = 3
    assert eval("(lazytpu.memory(holders=True), kept)")[1] == 3
    variables = locals()
    lazytpu.memory(holders=True)
    assert variables["kept"] == kept


def test_search_by_a_trace_function_keeps_the_variables_of_the_function() -> None:
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == "traced" and event == "line" and not seen:
            seen.append(event)
            lazytpu.memory(holders=True)
        return trace

    def traced(kept: int) -> int:
        again = kept
        return again + kept

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert traced(4) == 8
    finally:
        sys.settrace(before)
    assert seen


def test_report_counts_the_values_without_a_holder() -> None:
    w = torch.ones(4, requires_grad=True, device="tpu")
    loss = w.exp().exp().sum()  # the graph holds exp's results, no variable does
    lazytpu.sync()
    report = lazytpu.memory(holders=True)
    lost = sum(value.name is None and value.holder is None for value in report.values)
    (line,) = [line for line in str(report).splitlines() if line.startswith("(no holder found)")]
    assert lost >= 2 and line.split()[-1] == str(lost)
    assert "(no holder found)" not in str(lazytpu.memory())
    assert loss.shape == ()
