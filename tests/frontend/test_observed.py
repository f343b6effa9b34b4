"""User objects whose attributes raise, lie or count: no code that inspects them raises into an op, or runs user
code."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import lazytpu
from lazytpu.frontend import names


class Never(Exception):
    """Raised by every attribute that must not be read."""


def never(*args: Any, **kwargs: Any) -> Any:
    raise Never


class Tensor(torch.Tensor):
    """Overrides every attribute that a kernel, or a report, would read of a tensor."""

    shape = dtype = device = layout = grad = is_leaf = requires_grad = property(never)  # pyright: ignore
    size = stride = storage_offset = dim = numel = untyped_storage = is_conj = is_neg = never  # pyright: ignore
    __getattr__ = __eq__ = never

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Never


def tensor(*sizes: int, device: str = "tpu") -> Any:
    return torch.Tensor._make_subclass(Tensor, torch.ones(sizes, device=device))


class Wrapper(TwoTensor):
    """Does not expose the tensors that it wraps."""

    __tensor_flatten__ = never


class Endless(TwoTensor):
    """Wraps itself."""

    itself = property(lambda self: self)

    def __tensor_flatten__(self) -> Any:
        return ["itself"], None


def wrapper(kind: type[TwoTensor]) -> nn.Module:
    return _wrapped(kind(torch.ones(3, device="tpu"), torch.ones(3, device="tpu")))


class Module(nn.Module):
    """Overrides every access to the contents of a module."""

    named_parameters = parameters = named_buffers = buffers = children = named_children = modules = never  # pyright: ignore
    __getattr__ = __eq__ = __hash__ = __repr__ = __len__ = never  # pyright: ignore


class Dictionary(OrderedDict[str, Any]):
    items = values = keys = __iter__ = __getitem__ = __len__ = __contains__ = never  # pyright: ignore


def _module() -> nn.Module:
    module: Any = nn.Linear(2, 2, device="tpu")
    module.__class__ = Module
    return module


def _replaced() -> nn.Module:
    module = nn.Linear(2, 2, device="tpu")
    module.__dict__["_parameters"] = Dictionary()
    module.__dict__["_modules"] = "no dictionary"
    return module


def _children() -> nn.Module:
    module, child = nn.Module(), nn.Linear(2, 2, device="tpu")
    module.register_buffer("buffer", tensor(2))
    module._modules["proxy"] = weakref.proxy(child)  # pyright: ignore[reportArgumentType]
    module._modules["mock"] = mock.MagicMock(spec=nn.Module)
    module._modules["self"] = module
    module._parameters["number"] = 3  # pyright: ignore[reportArgumentType]
    module._parameters[4] = child.weight  # pyright: ignore[reportArgumentType]
    return nn.Sequential(module, child)


class Optimizer(torch.optim.SGD):
    param_groups = property(never, lambda self, value: self.__dict__.update(param_groups=value))  # pyright: ignore
    state = property(never, lambda self, value: self.__dict__.update(state=value))  # pyright: ignore
    __eq__ = __hash__ = never  # pyright: ignore


def _nested(depth: int) -> nn.Module:
    module = nn.Module()
    module.register_buffer("end", torch.ones(1, device="tpu"))
    for _ in range(depth):
        outer = nn.Module()
        outer.add_module("inner", module)
        module = outer
    return module


def _claims() -> nn.Module:
    class Claims:
        __class__ = property(never)  # pyright: ignore

    module = nn.Module()
    module.register_buffer("buffer", torch.ones(2, device="tpu"))
    module._buffers["claims"] = Claims()  # pyright: ignore[reportArgumentType]
    return module


def _wrapped(tensor: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("buffer", tensor)
    return module


def _meta() -> nn.Module:
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = nn.Linear(2, 2, device="meta")
    with FakeTensorMode():
        module.register_buffer("fake", torch.ones(3, device="tpu"))
    return module


OBJECTS: dict[str, Callable[[], Any]] = {
    "module": _module,
    "module with other containers": _replaced,
    "children": _children,
    "deep": lambda: _nested(300),
    "claims": _claims,
    "tensor": lambda: _wrapped(tensor(3)),
    "parameter": lambda: torch.Tensor._make_subclass(Tensor, torch.ones(3, device="tpu"), True),
    "sparse": lambda: _wrapped(torch.eye(3).to_sparse().to("tpu")),
    "nested": lambda: _wrapped(torch.nested.nested_tensor([torch.ones(2)])),
    "uninitialized": lambda: nn.LazyBatchNorm2d(device="tpu"),
    "meta": _meta,
    "script": lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2, device="tpu"))),
    "wrapper": lambda: wrapper(Wrapper),
    "endless wrapper": lambda: wrapper(Endless),
    "subclass of another": lambda: _wrapped(torch.masked.MaskedTensor(torch.ones(2), torch.tensor([True, False]))),
}


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.filterwarnings("ignore")
def test_an_op_beside_it_works(name: str) -> None:
    kept = OBJECTS[name]()
    x = torch.ones(3, device="tpu")
    assert (x + 1).tolist() == [2, 2, 2]
    assert lazytpu.memory().allocated > 0
    str(lazytpu.explain())
    del kept


def test_a_tensor_whose_class_raises_is_an_operand() -> None:
    """In ops that torch's C++ dispatches: it reads no subclass attribute on the CPU either."""
    for device in ("cpu", "tpu"):
        x = tensor(3, device=device)
        with torch._C.DisableTorchFunctionSubclass():
            y = x + 1
            assert x.add_(1) is x
            assert (x * y).cpu().tolist() == [4, 4, 4]
            assert torch.stack([x, x]).sum().item() == 12
            assert torch.Tensor.tolist(x.detach()) == [2, 2, 2]
            assert torch.Tensor.to(x, torch.float64).cpu().tolist() == [2, 2, 2]


def test_step_with_such_an_optimizer() -> None:
    weights = []
    for device in ("cpu", "tpu"):
        weight = nn.Parameter(torch.ones(3, device=device))
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
        for _ in range(2):
            (weight * 2).sum().backward()
            optimizer.step()
            optimizer.__class__ = Optimizer
            (weight + 1).cpu()
            optimizer.__class__ = torch.optim.SGD
        weights.append(weight.detach().cpu())
    torch.testing.assert_close(*weights)


def test_modes_of_the_user_do_not_see_inspection() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class DispatchMode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    module = nn.Linear(2, 2, device="tpu")
    module.register_buffer("wrapper", TwoTensor(torch.ones(3, device="tpu"), torch.ones(3, device="tpu")))
    module.register_buffer("sparse", torch.eye(3).to_sparse().to("tpu"))
    with Mode(), DispatchMode():
        assert set(names.parameter_slots(-2)) == set()
        names.slot_names(-2)
        names.model_names(-2)
        list(names.named())
    assert not seen
    del module


def test_modules_come_and_go_in_other_threads() -> None:
    failures: list[BaseException] = []
    ends = threading.Event()

    def make() -> None:
        kept: list[Any] = []
        while not ends.is_set():
            kept = [*kept[-20:], nn.Linear(1, 1)]

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            names.parameter_count()
            names.model_names(-2)
    except RuntimeError as error:
        failures.append(error)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        gc.collect()
    assert not failures
