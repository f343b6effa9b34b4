"""torch.cond, while_loop and scan on the device: one record each, whose branches and bodies are subtraces.

torch's own implementations read the condition on the host and run a loop's body once per iteration. They remain in use
where a record is impossible:

- conditions and carried values that are Python numbers,
- bodies that read values,
- the stacked outputs of a `while_loop`, whose number is unknown before it has run.

associative_scan and flex_attention need no support here, because torch implements them by ordinary ops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.capture import capture
from lazytpu.dynamo.placeholders import NewConstants, NotOneRecord
from lazytpu.dynamo.results import Capture, Fresh, Input
from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.tensors import is_dense, layout, wrap
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand
from lazytpu.trace.value import Layout, row_major

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
for _overload in ("", ".random"):
    LIBRARY.define(f"cond{_overload}(Tensor predicate, Tensor[] inputs, str then, str orelse) -> Tensor[]")
    LIBRARY.define(f"while_loop{_overload}(Tensor[] carried, Tensor[] invariants, str cond, str body) -> Tensor[]")
    LIBRARY.define(f"scan{_overload}(Tensor[] carried, Tensor[] xs, Tensor[] invariants, str body) -> Tensor[]")
OPS: Any = torch.ops.lazytpu


@override("lazytpu.cond.default", "lazytpu.cond.random")
def _like_branch(then: str, **unused: Any) -> list[torch.Tensor]:
    return [_meta(out) for out in SUBTRACES[then].outs]


@override("lazytpu.while_loop.default", "lazytpu.while_loop.random")
def _like_carried(body: str, **unused: Any) -> list[torch.Tensor]:
    return [_meta(out) for out in SUBTRACES[body].outs]


@override("lazytpu.scan.default", "lazytpu.scan.random")
def _like_scan(carried: list[torch.Tensor], xs: list[torch.Tensor], body: str, **unused: Any) -> list[torch.Tensor]:
    outs = SUBTRACES[body].outs
    final, rows = outs[: len(carried)], outs[len(carried) :]
    stacked = [torch.empty((xs[0].shape[0], *row.shape), dtype=row.dtype, device="meta") for row in rows]
    return [*map(_meta, final), *stacked]


def _meta(out: Layout) -> torch.Tensor:
    return torch.empty_strided(out.shape, out.stride, dtype=out.dtype, device="meta")


@dataclass
class _Function:
    """A branch or body from torch. The tensors among its constants become arguments."""

    function: Callable[..., Any]
    constants: dict[str, torch.Tensor]

    def traced(self, like: Sequence[torch.Tensor]) -> Capture:
        """Return its records for arguments like these, made dense where they are not."""
        if not isinstance(self.function, fx.GraphModule):
            raise NotOneRecord("a branch or body was not captured")
        while True:
            arguments = [_alone(t) for t in (*like, *self.constants.values())]
            try:
                return capture(self.function, arguments, self.constants, (), False)
            except NewConstants as new:
                self.constants.update(new.constants)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized dense tensor of the same shape and dtype, in its own storage."""
    return torch.empty_strided(tensor.shape, _dense_stride(tensor), dtype=tensor.dtype, device=tensor.device)


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return stride if is_dense(shape, stride) else row_major(shape)


def subtraces(functions: Sequence[Callable[..., Any]], like: Sequence[torch.Tensor]) -> tuple[list[str], list[Any]]:
    """Record functions of the same arguments. Returns their digests, and the extra tensors that all of them take after
    those.

    Raises NotOneRecord when a function cannot be recorded.
    """
    branches = [_Function(function, {}) for function in functions]
    captures = [branch.traced(like) for branch in branches]
    constants = [
        [*branch.constants.values(), *map(wrap, captured.uploads.values())]
        for branch, captured in zip(branches, captures, strict=True)
    ]
    extra = [tensor for tensors in constants for tensor in tensors]
    arguments = tuple([layout(t.dtype, tuple(t.shape), _dense_stride(t)) for t in (*like, *extra)])
    names: list[str] = []
    first = len(like)
    for tensors, captured in zip(constants, captures, strict=True):
        names.append(_keep(captured, arguments, len(like), first, first + len(tensors)))
        first += len(tensors)
    return names, extra


def _keep(captured: Capture, arguments: tuple[Layout, ...], shared: int, first_own: int, end: int) -> str:
    """Register a capture as a subtrace, and return its digest.

    The functions share their first `shared` arguments. The capture's further arguments and its uploads are arguments
    `own` to `end` of all functions.
    """

    def place(index: int) -> int:
        return index if index < shared else index - shared + first_own

    if captured.written:
        raise NotOneRecord("a branch or body writes to its arguments")
    results: list[Operand | int] = []
    outs: list[Layout] = []
    for result in captured.results:
        match result:
            case Input(index, None):
                results.append(place(index))
                outs.append(arguments[place(index)])
            case Fresh(slot, view) if slot in captured.values:
                results.append(Operand(slot, view))
                outs.append(_layout(captured.values[slot], view))
            case _:
                raise NotOneRecord("a branch or body returns a view of its arguments, or no tensor")
    inputs = {slot: place(index) for slot, index in captured.inputs.items()}
    inputs |= dict(zip(captured.uploads, range(end - len(captured.uploads), end), strict=True))
    function = Subtrace(
        arguments, captured.records, inputs, captured.numbers, len(captured.draws), tuple(results), tuple(outs)
    )
    name = _digest(function)
    SUBTRACES.setdefault(name, function)
    return name


def _layout(layout_of_value: Layout, view: Any) -> Layout:
    if view is None:
        return layout_of_value
    size, stride, _, dtype = view
    return layout(dtype, size, stride if is_dense(size, stride) else row_major(size))


def _digest(function: Subtrace) -> str:
    try:
        records = activation.engine().text_of(function.records)
    except TypeError as error:
        raise NotOneRecord(str(error)) from None
    return hashlib.sha256(repr(function.identity(records)).encode()).hexdigest()[:32]


def _drawing(op: Any, names: Sequence[str]) -> Callable[..., Any]:
    """Return the kernel of the overload `random` if a subtrace draws random numbers, else of the default overload."""
    random = any(SUBTRACES[name].draws for name in names)
    return kernel(op.random if random else op.default).call


def _all_on_device(values: Sequence[Any]) -> bool:
    return all(isinstance(v, torch.Tensor) and v.device.type == "tpu" for v in values)


def _shapes(outs: Sequence[Layout]) -> list[Any]:
    return [(out.dtype, out.shape) for out in outs]


def cond(predicate: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Record torch.cond. Raises NotOneRecord."""
    if not _all_on_device([predicate, *operands]):
        raise NotOneRecord("the condition or an operand of torch.cond is not on the device")
    names, extra = subtraces([true_fn, false_fn], operands)
    then, orelse = (_shapes(SUBTRACES[name].outs) for name in names)
    if then != orelse:
        raise RuntimeError(f"the branches of torch.cond return different results: {then} and {orelse}")
    return tuple(_drawing(OPS.cond, names)(predicate, [*operands, *extra], *names))


def while_loop(
    cond_fn: Any,
    body_fn: Any,
    carried: Sequence[Any],
    additional: Sequence[Any],
    stack_output: bool = False,
    mutated_arg_indices: str = "",
) -> tuple[Any, ...]:
    """Record torch's while_loop. Raises NotOneRecord."""
    if stack_output or mutated_arg_indices or not _all_on_device([*carried, *additional]):
        raise NotOneRecord("a while_loop that stacks its outputs, writes, or carries values outside the device")
    names, extra = subtraces([cond_fn, body_fn], [*carried, *additional])
    before, after = _shapes([layout_of(t) for t in carried]), _shapes(SUBTRACES[names[1]].outs)
    if before != after:
        raise RuntimeError(f"the body of a while_loop returns {after}, expected {before}, its carried values")
    return tuple(_drawing(OPS.while_loop, names)(list(carried), [*additional, *extra], *names))


def scan(combine_fn: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]) -> list[Any]:
    """Record torch's scan over the first dimension of `xs`. Raises NotOneRecord."""
    if not xs or not xs[0].shape[0] or not _all_on_device([*init, *xs, *additional]):
        raise NotOneRecord("a scan over nothing, or over tensors outside the device")
    rows = [x.new_empty(x.shape[1:]) for x in xs]
    names, extra = subtraces([combine_fn], [*init, *rows, *additional])
    before, after = _shapes([layout_of(t) for t in init]), _shapes(SUBTRACES[names[0]].outs)[: len(init)]
    if before != after:
        raise RuntimeError(f"the function of a scan returns {after}, expected {before}, its carried values")
    return list(_drawing(OPS.scan, names)(list(init), list(xs), [*additional, *extra], *names))


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return the layout of a contiguous tensor with the same dtype and shape."""
    return layout(tensor.dtype, tuple(tensor.shape), row_major(tuple(tensor.shape)))


_RECORDED: dict[str, Callable[..., Any]] = {"cond": cond, "while_loop": while_loop, "scan": scan}


def record(op: Any, dense: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order op of torch on the device: as one record, or by torch's own implementation `dense`."""
    try:
        return _RECORDED[op.name()](*args, **kwargs)
    except NotOneRecord:
        return dense(*args, **kwargs)
