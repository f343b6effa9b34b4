"""What a step function can reach: tensors, modules, optimizers, schedulers, generators, and the plain Python values its
code names.

Found by walking from the function, through closures, globals and attributes that the code names, to the arguments.
Nothing is assumed to be complete: a tensor that a call reads and the walk did not find makes capture refuse.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from lazytpu.frontend.device.generators import TpuGenerator
from lazytpu.replay.code import SIMPLE, class_values, globals_of, in_library, is_library_module, methods_of, names_of

LARGE = 4096  # entries of a list or dict that is not looked into: data rather than state
MANY = 200_000  # things visited in all
GRAD = "gradient of"  # in place of a key: the container is a tensor, and the place its .grad

_HOOKS = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))
ARGUMENT = -1  # in place of a container's id: the key is the index of a leaf of the call's arguments
Key = tuple[int, Any]  # (id of the container, key in it)


class Reach:
    """One walk. Containers are kept alive by it, so that their ids are theirs alone.

    `tensors`: the device's tensors by place, `places` the container and key of each, `labels` their names.
    `simple` and `objects`: other entries by place, plain values and everything else. `whole`: containers all of whose
    entries count, `single` (dict, key) that count alone, `cells` of closures, `classes` (class, name) of plain values.
    `numbers_on_cpu`: 0-d tensors there. `host_states`: optimizers' states on the CPU, (optimizer, dict, key, tensor).
    """

    def __init__(self, names: set[str], roots: list[tuple[Any, str]]):
        self.names = names
        self.tensors: dict[Key, torch.Tensor] = {}
        self.places: dict[Key, tuple[Any, Any]] = {}
        self.labels: dict[Key, str] = {}
        self.simple: dict[Key, Any] = {}
        self.objects: dict[Key, Any] = {}
        self.whole: list[tuple[Any, str]] = []
        self.single: list[tuple[dict[str, Any], str]] = []
        self.cells: list[Any] = []
        self.classes: list[tuple[type, str, Any]] = []
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[LRScheduler] = []
        self.generators: list[TpuGenerator] = []
        self.numbers_on_cpu: list[tuple[str, torch.Tensor]] = []
        self.host_states: list[tuple[torch.optim.Optimizer, dict[str, Any], str, torch.Tensor]] = []
        self.seen: dict[int, Any] = {}
        self._held: set[int] = set()
        self._todo: list[tuple[Any, str]] = list(roots)
        while self._todo and len(self.seen) < MANY:
            thing, label = self._todo.pop()
            if id(thing) not in self.seen:
                self.seen[id(thing)] = thing
                self._visit(thing, label)
        inner = {id(s) for each in self.schedulers for s in vars(each).get("_schedulers", ())}
        self.schedulers = [each for each in self.schedulers if id(each) not in inner]  # their outer one steps them

    @staticmethod
    def of(names: set[str], roots: list[tuple[Any, str]]) -> Reach:
        """Walks until the code that was found names nothing new; `names` grows."""
        while True:
            before = len(names)
            found = Reach(names, roots)
            if len(names) == before:
                return found

    # -- one entry of a container

    def _entry(self, container: Any, key: Any, value: Any, label: str) -> None:
        place = (id(container), key)
        if value is None or type(value) in SIMPLE or isinstance(value, enum.Enum):
            self.simple[place] = value
        elif isinstance(value, torch.Tensor):
            self._tensor(container, key, value, label)
            return
        else:
            self.objects[place] = value
            self._todo.append((value, label))
        self.labels[place] = label

    def _tensor(self, container: Any, key: Any, tensor: torch.Tensor, label: str) -> None:
        place = (id(container), key)
        self.labels[place] = label
        self.seen[id(container)] = container
        if tensor.device.type == "tpu" and tensor.layout is torch.strided:
            self.tensors[place] = tensor
            self.places[place] = (container, key)
            if tensor.is_leaf and tensor.requires_grad:
                self.simple[id(tensor), GRAD] = tensor.grad is None
                self.labels[id(tensor), GRAD] = f"{label}.grad"
                if tensor.grad is not None:
                    self._tensor(tensor, GRAD, tensor.grad, f"{label}.grad")
        elif tensor.device.type == "cpu" and tensor.dim() == 0:
            self.numbers_on_cpu.append((label, tensor))
            self.simple[place] = tensor.detach().item()

    # -- what kinds of things there are

    def _visit(self, thing: Any, label: str) -> None:
        if isinstance(thing, nn.Module):
            self._module(thing, label)
        elif isinstance(thing, torch.optim.Optimizer):
            self._optimizer(thing, label)
        elif isinstance(thing, LRScheduler):
            self.schedulers.append(thing)
        elif isinstance(thing, TpuGenerator):
            self.generators.append(thing)
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.MethodType):
            self._todo.extend([(thing.__self__, label), (thing.__func__, label)])
        elif isinstance(thing, functools.partial):
            self._entry(thing, "func", thing.func, label)
            self._todo.extend([(thing.args, label), (thing.keywords, label)])
        elif isinstance(thing, dict):
            self._all_of(thing, thing.items(), label)
        elif isinstance(thing, list | tuple):
            self._all_of(thing, enumerate(thing), label)
        elif isinstance(thing, types.ModuleType):
            if not is_library_module(thing.__name__):
                self._named(vars(thing), label)
        elif isinstance(thing, torch.Tensor):
            self._tensor(thing, None, thing, label)
        elif not isinstance(thing, type):
            self._object(thing, label)

    def _all_of(self, container: Any, entries: Any, label: str) -> None:
        if len(container) <= LARGE:
            if not isinstance(container, tuple):
                self.whole.append((container, label))
            for key, value in list(entries):
                shown = repr(key) if isinstance(key, str | int) else "..."
                self._entry(container, key if isinstance(key, str | int) else id(key), value, f"{label}[{shown}]")

    def _module(self, module: nn.Module, label: str) -> None:
        self.modules.append(module)
        attributes = vars(module)
        self.whole.append((attributes, label))
        for name, value in attributes.items():
            if name in ("_parameters", "_buffers", "_modules"):
                self.whole.append((value, label))
                for inner, found in value.items():
                    self._entry(value, inner, found, f"{label}.{inner}" if label else inner)
            elif name in _HOOKS:
                self.whole.append((value, label))  # which hooks there are counts, not what they hold
            else:
                self._entry(attributes, name, value, f"{label}.{name}")
                room = str(type(value).__module__)
                if is_library_module(room) and not room.startswith("lazytpu."):
                    self._held.add(id(value))  # a configuration, say: the library's code may read all of it
        self._class(module)

    def _optimizer(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        self.optimizers.append(optimizer)
        for name in ("state", "param_groups"):  # load_state_dict() makes new ones
            self.single.append((vars(optimizer), name))
            self.objects[id(vars(optimizer)), name] = vars(optimizer)[name]
        self.whole.extend((hooks, label) for name, hooks in vars(optimizer).items() if name.endswith("_hooks"))
        self.whole.append((optimizer.state, label))
        self.whole.append((optimizer.param_groups, label))
        for i, (parameter, state) in enumerate(optimizer.state.items()):
            if not isinstance(state, dict):
                continue
            self.objects[id(optimizer.state), id(parameter)] = state
            self.whole.append((state, label))
            for key, value in state.items():
                name = f"{label}.state[{i}].{key}"
                if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
                    self.host_states.append((optimizer, state, key, value))
                else:
                    self._entry(state, key, value, name)
        for i, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key == "params":
                    self._all_of(value, enumerate(value), f"{label}.param_groups[{i}].params")
                elif not is_hyper(value):
                    self.single.append((group, key))
                    self._entry(group, key, value, f"{label}.param_groups[{i}][{key!r}]")

    def _function(self, function: types.FunctionType) -> None:
        if in_library(function.__code__.co_filename):
            wrapped = getattr(function, "__wrapped__", None)
            if wrapped is not None:  # a decorator's function, such as torch.no_grad()'s
                self._todo.append((wrapped, ""))
                self._cells(function)
            return
        self.names |= names_of(function.__code__)
        module_globals = function.__globals__
        for name in globals_of(function.__code__):
            if name in module_globals:
                self.single.append((module_globals, name))
                self._entry(module_globals, name, module_globals[name], name)
        self._cells(function)
        for value in function.__defaults__ or ():
            self._todo.append((value, "a default argument"))

    def _cells(self, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.cells.append(cell)
            self._entry(cell, "cell_contents", value, name)

    def _object(self, thing: Any, label: str) -> None:
        attributes = getattr(thing, "__dict__", None)
        if isinstance(attributes, dict):
            room = str(type(thing).__module__)
            if id(thing) in self._held or (room.startswith("torch.") and not room.startswith("torch.utils.data")):
                self._all_of(attributes, attributes.items(), label)
            else:
                self._named(attributes, label)
            if "__wrapped__" in attributes:  # of another step function, for one
                self._todo.append((attributes["__wrapped__"], label))
        self._class(thing)

    def _named(self, attributes: dict[str, Any], label: str) -> None:
        for name in attributes.keys() & self.names:
            self.single.append((attributes, name))
            self._entry(attributes, name, attributes[name], f"{label}.{name}")

    def _class(self, thing: Any) -> None:
        kind = type(thing)
        if is_library_module(kind.__module__):
            return
        self._todo.extend((method, "") for method in methods_of(kind, self.names))
        for cls, name, value in class_values(kind, self.names):
            self.classes.append((cls, name, value))
            self._entry(cls, name, value, f"{cls.__name__}.{name}")


def is_hyper(value: Any) -> bool:
    """Whether an entry of a parameter group is a number that a program takes at run time, or a tuple of such."""
    if type(value) is tuple:
        return bool(value) and all(type(v) in (int, float) for v in value)
    return type(value) in (int, float)
