"""The layers of torch.nn, from torch's database of modules, as entries of the op database.

A layer's call takes its constructor's arguments and its parameters besides its inputs. So sizes change in all three at
once, and parameters have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.opinfo.core import SampleInput

from tools.conformance.samples import Call

FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


class Layer:
    """A layer, with the interface of an entry of the op database."""

    decorators: tuple[Any, ...] = ()
    error_inputs_func = None
    supports_out = False

    def __init__(self, info: ModuleInfo):
        self.name, self.module_info = info.name, info

    def supported_dtypes(self, _: str) -> frozenset[torch.dtype]:
        return FLOATS

    supported_backward_dtypes = supported_dtypes

    def get_op(self) -> Callable[..., Any]:
        return self.run

    def get_inplace(self) -> None:
        return None

    def gradcheck_wrapper(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def sample_inputs_func(self, _: Any, device: str, dtype: torch.dtype, grad: bool) -> Iterator[SampleInput]:
        """The inputs of the database, training and evaluating; without parameters, which depend on sizes."""
        modes = (True, False) if self.module_info.train_and_eval_differ else (True,)
        for training in modes:
            for module_input in self.module_info.module_inputs_func(self.module_info, device, dtype, grad, training):
                args, kwargs = module_input.forward_input.args, dict(module_input.forward_input.kwargs)
                kwargs["constructor"] = (module_input.constructor_input.args, module_input.constructor_input.kwargs)
                kwargs["training"] = training
                if not args:  # the input is named
                    args = (kwargs.pop(next(iter(kwargs))),)
                yield SampleInput(args[0], args=tuple(args[1:]), kwargs=kwargs)

    def with_parameters(self, call: Call, dtype: torch.dtype, seed: int) -> Call:
        """The call with the parameters and buffers that its constructor draws."""
        args, kwargs = call[2]["constructor"]
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            module = self.module_info.module_cls(*args, **kwargs).to(dtype)
        states: dict[str, torch.Tensor] = {n: p.detach().requires_grad_(True) for n, p in module.named_parameters()}
        states |= {n: b.detach() for n, b in module.named_buffers()}
        return call[0], call[1], {**call[2], "states": states}

    def run(self, *args: Any, constructor: Any, training: bool, states: dict[str, torch.Tensor], **kwargs: Any) -> Any:
        """The layer's results, with `states` as its parameters and buffers."""
        with torch.device("meta"):
            module = self.module_info.module_cls(*constructor[0], **constructor[1])
        for name, state in states.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            leaf = name.rpartition(".")[2]
            owner._parameters.pop(leaf, None)
            setattr(owner, leaf, state)  # recurrent layers see it this way
        return module.train(training)(*args, **kwargs)


@cache
def layers() -> dict[str, Layer]:
    """Return every layer by its name; lazy layers are replaced by the layers that they become."""
    return {info.name: Layer(info) for info in module_db if not info.is_lazy}
