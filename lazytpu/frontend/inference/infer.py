"""Shapes, dtypes and strides of an op's results, from torch's meta functions; inferred once per trie state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch._ops import OpOverload

from lazytpu.frontend import activation
from lazytpu.frontend.inference.cpu_errors import ask_cpu
from lazytpu.frontend.inference.refusals import REFUSALS
from lazytpu.frontend.inference.strides import is_iterated, iterated
from lazytpu.frontend.tensors import is_dense, layout
from lazytpu.frontend.torch_private import python_dispatch
from lazytpu.trace.value import Layout, row_major

aten = torch.ops.aten


def to_meta(value: Any) -> Any:
    """Convert tpu tensors to meta tensors of the same size and stride, and devices to meta; other values are
    unchanged."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "tpu":
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [to_meta(v) for v in value]
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Generator):
        return None
    return value


_KNOWN = 16_384  # maximum number of cached layouts, about 1 kB each with their keys
_known: dict[Any, tuple[Any, ...]] = {}
# Argument types besides tensors that an inference can depend on by value. Other types, such as symbolic sizes, are not
# cached.
_STATIC = frozenset(
    {int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


class _NotStatic(Exception):
    """An argument that cannot be part of a key: a tensor on the CPU, whose value may matter, or a generator."""


def infer(op: OpOverload, bound: dict[str, Any]) -> tuple[Any, ...]:
    """Return one entry per schema return: a Layout, a tuple of Layouts for a list, None for an absent tensor, or a
    number.

    `bound` are the arguments by schema name. Raises torch's errors for these arguments.

    torch's meta functions take 100 to 800 us, and a loop in a step infers the same for each iteration. So the results
    of torch's own ops are cached under everything that they depend on. Errors are not cached.
    """
    if op.namespace != "aten":  # other libraries may register other functions later
        return _infer(op, bound)
    if torch.are_deterministic_algorithms_enabled() or torch.is_autocast_enabled("cpu"):
        return _infer(op, bound)  # some ops warn; `ask_cpu` may get another dtype
    try:
        key = (op, torch.get_default_dtype(), *[(name, _token(value)) for name, value in bound.items()])
        layouts = _known.get(key)
    except (_NotStatic, TypeError):  # symbolic sizes have no hash
        return _infer(op, bound)
    if layouts is None:
        layouts = _infer(op, bound)
        if len(_known) >= _KNOWN:
            _known.clear()
        _known[key] = layouts
    return layouts


def _token(value: Any) -> Any:
    """Return an argument's part of the key; True, 1 and 1.0 differ."""
    kind = type(value)
    if kind in _STATIC:
        return kind, value
    if isinstance(value, torch.Tensor):
        if value.device.type != "tpu":
            raise _NotStatic
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple([_token(v) for v in value])
    raise _NotStatic


def _infer(op: OpOverload, bound: dict[str, Any]) -> tuple[Any, ...]:
    arguments = {name: to_meta(value) for name, value in bound.items()}
    enabled = torch.is_grad_enabled()
    try:
        with torch.no_grad():
            try:
                results = _computed(op, arguments)
            except Exception as refusal:  # noqa: BLE001 (meta functions assert, index, divide)
                results = ask_cpu(op, partial(call, op), bound, refusal)
    finally:
        # An interrupt on the way into or out of no_grad() would leave gradients disabled.
        torch.set_grad_enabled(enabled)
    return _layouts(op, arguments, results, layout)


def derive(op: OpOverload, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Do the same as `infer` for meta tensors whose sizes are SymInts: the layouts have SymInts as well.

    Raises the errors of torch's meta functions in Python, also where these need a concrete size.
    """
    enabled = torch.is_grad_enabled()
    try:
        with torch.no_grad(), python_dispatch():
            return _layouts(op, arguments, _computed(op, arguments), Layout)
    finally:
        torch.set_grad_enabled(enabled)


def _computed(op: OpOverload, arguments: dict[str, Any]) -> Any:
    """Run an op's meta function, or its override, on meta tensors. Raises their errors, and the errors that only the
    CPU raises."""
    override, refuse, target = OVERRIDES.get(str(op)), REFUSALS.get(str(op)), arguments.get("self")
    shape_before = target.shape if op._schema.is_mutable and isinstance(target, torch.Tensor) else None
    if refuse is not None:
        refuse(**arguments)
    _check_kept(op, arguments)
    results = call(op, arguments) if override is None else override(**arguments)
    if shape_before is not None and results is target:  # the meta function of floor_divide_ resizes it
        check_shape(shape_before, results.shape)
    return results


def _layouts(op: OpOverload, arguments: dict[str, Any], results: Any, make: Callable[..., Layout]) -> tuple[Any, ...]:
    """Return the layouts of the results of a meta function."""
    if is_iterated(op):
        results = iterated(op, arguments, results)
    if "output_mask" in arguments:  # some meta functions return gradients that were not requested
        results = [r if wanted else None for r, wanted in zip(results, arguments["output_mask"], strict=True)]
    returns = op._schema.returns
    if len(returns) == 1:
        results = (results,)
    elif not returns:
        return ()
    return tuple(_layout(r, make) for r in results)


def call(op: OpOverload, arguments: dict[str, Any]) -> Any:
    schema = op._schema.arguments
    parameters = [a for a in schema if not a.kwarg_only]
    while parameters and parameters[-1].name not in arguments:
        parameters.pop()
    positional = [arguments.get(a.name, a.default_value) for a in parameters]
    return op(*positional, **{a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments})


_UNTAGGED = frozenset({"aten::__irshift__", "aten::floor_divide_"})  # nor are their functional forms found, or tagged


@functools.cache
def is_pointwise(op: OpOverload) -> bool:
    """Return whether an op, or the functional form of an op that writes, is tagged pointwise; torch tags only some ops
    that write."""
    functional = activation.engine().functional(op)
    forms = (op, op if functional is None else functional)
    return op._schema.name in _UNTAGGED or any(torch.Tag.pointwise in form.tags for form in forms)


def _check_kept(op: OpOverload, arguments: dict[str, Any]) -> None:
    """Raise RuntimeError when an in-place op would write a result of another shape than its target. Meta functions of
    comparisons and others do not check it."""
    if not op._schema.is_mutable:
        return
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) != 1:
        return
    target = arguments.get(written[0])
    operands = [v for name, v in arguments.items() if name not in written]
    if isinstance(target, list):
        lists = [v for v in operands if isinstance(v, list) and v and isinstance(v[0], torch.Tensor)]
        for i, tensor in enumerate(target):
            _check_broadcast(tensor, [v[i] for v in lists if i < len(v)])
    elif not isinstance(target, torch.Tensor):
        return
    elif is_pointwise(op):
        _check_broadcast(target, operands)
    elif (functional := activation.engine().functional(op)) is not None and _tensors(operands):
        result = call(functional, arguments)
        if isinstance(result, torch.Tensor):
            check_shape(target.shape, result.shape)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    return [t for v in values for t in (v if isinstance(v, list) else [v]) if isinstance(t, torch.Tensor)]


def _check_broadcast(target: torch.Tensor, others: list[Any]) -> None:
    shapes = [t.shape for t in _tensors(others) if t.shape != target.shape and t.dim()]
    if shapes:
        check_shape(target.shape, torch.broadcast_shapes(target.shape, *shapes))


def check_shape(target: torch.Size, shape: torch.Size) -> None:
    if target != shape:
        raise RuntimeError(f"output with shape {list(target)} doesn't match the broadcast shape {list(shape)}")


def _layout(result: Any, make: Callable[..., Layout]) -> Any:
    """Return the layout of a result. Kernels allocate dense memory, so overlapping or gapped strides of a meta function
    mean contiguous."""
    if result is None or isinstance(result, int):
        return result
    if isinstance(result, list | tuple):
        return tuple(_layout(r, make) for r in cast("Sequence[Any]", result))
    shape, stride = tuple(result.shape), tuple(result.stride())
    return make(result.dtype, shape, stride if is_dense(shape, stride) else row_major(shape))


# Ops whose meta function is missing, or returns other strides than the CPU.
OVERRIDES: dict[str, Any] = {}


def override(*names: str) -> Any:
    """Register the decorated function as the meta function of the overloads `names`."""

    def register(function: Any) -> Any:
        for name in names:
            OVERRIDES[name] = function
        return function

    return register


def _multiplied(op: OpOverload, first: str, second: str, product: OpOverload | None = None) -> None:
    """Register a meta function that rejects matrices of different dtypes, and `self` if it does not expand to the shape
    of `product`. torch's meta functions do not."""

    def check(**arguments: Any) -> torch.Tensor:
        left, right = arguments[first], arguments[second]
        if left.dtype != right.dtype:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {left.dtype} != {right.dtype}")
        if product is not None:
            shape = product(left, right).shape
            if torch.broadcast_shapes(arguments["self"].shape, shape) != shape:
                raise RuntimeError(f"{list(arguments['self'].shape)} does not expand to {list(shape)}")
        return op(**arguments)

    OVERRIDES[str(op)] = check


for _op, _first, _second, *_product in (
    (aten.mm.default, "self", "mat2"),
    (aten.addmm.default, "mat1", "mat2", aten.mm.default),
    (aten.addmm_.default, "mat1", "mat2", aten.mm.default),
    (aten.bmm.default, "self", "mat2"),
    (aten.baddbmm.default, "batch1", "batch2"),
    (aten.mv.default, "self", "vec"),
    (aten.addmv.default, "mat", "vec", aten.mv.default),
    (aten.dot.default, "self", "tensor"),
):
    _multiplied(_op, _first, _second, *_product)


@override(
    "aten._fused_adam_.tensor_lr",
    "aten._fused_adamw_.tensor_lr",
    "aten._fused_sgd_.default",
    "aten._fused_sgd_.tensor_lr",
    "aten._fused_adagrad_.default",
    "aten._fused_adagrad_.tensor_lr",
)
def fused_step(**arguments: Any) -> tuple[()]:
    """Optimizer steps that only write have no results, and torch has no meta functions for these."""
    return ()


@override(
    "aten._fused_sgd.default",
    "aten._fused_sgd.tensor_lr",
    "aten._fused_adagrad.default",
    "aten._fused_adagrad.tensor_lr",
)
def functional_step(**arguments: Any) -> tuple[Any, ...]:
    """The lists that the writing form writes, each tensor like its own."""
    written = ("self", "grads", "momentum_buffer_list", "state_sums", "state_steps")
    return tuple([[torch.empty_like(x) for x in arguments[name]] for name in written if name in arguments])


@override("aten.multilabel_margin_loss_forward.default")
def multilabel_loss(self: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, ...]:
    """torch's decomposition keeps a dimension of the loss of one row without a reduction."""
    loss, marked = aten.multilabel_margin_loss_forward.default(self, target, reduction)
    return loss if self.dim() > 1 else loss.new_empty(()), marked


@override("aten.multi_margin_loss.default")
def multi_margin_loss(target: torch.Tensor, reduction: int = 1, **arguments: Any) -> torch.Tensor:
    """torch's decomposition keeps a dimension of the loss of a scalar target without a reduction."""
    loss = aten.multi_margin_loss.default(target=target, reduction=reduction, **arguments)
    return loss.new_empty(() if reduction else target.shape)


@override("aten._weight_norm_interface.default")
def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """The CPU's norms of half precision are float32."""
    weight, norms = aten._weight_norm_interface.default(v, g, dim)
    return weight, norms.float() if g.dtype.itemsize == 2 else norms


@override("aten.multi_margin_loss_backward.default", "aten.multilabel_margin_loss_backward.default")
def gradient_of_self(**arguments: Any) -> torch.Tensor:
    """torch has no meta functions for these ops: return a contiguous gradient of self."""
    return torch.empty_like(arguments["self"], memory_format=torch.contiguous_format)


@override("aten.nansum.default")
def nansum(self: torch.Tensor, dim: list[int] | None = None, keepdim: bool = False, **dtype: Any) -> torch.Tensor:
    """Without dimensions it sums over all of them, unlike torch's meta function."""
    return aten.nansum.default(self, dim or None, keepdim, **dtype)
