"""Recording kernels: each is generated at the first use of its op."""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from lazytpu.frontend import activation, unwritten
from lazytpu.frontend.device.generators import draw, undraw
from lazytpu.frontend.inference.argument_checks import checked
from lazytpu.frontend.inference.dtype_support import number_type
from lazytpu.frontend.recording import codegen
from lazytpu.frontend.recording.eager import run_now
from lazytpu.frontend.recording.factories import factory, factory_kernel
from lazytpu.frontend.recording.keys import ABSENT, exact, foreign, operands, overwrite, produce_all, wrap_all, wrap_one
from lazytpu.frontend.recording.miss import RecordingKernel, failed, miss
from lazytpu.frontend.recording.out import out_kernel, out_names
from lazytpu.frontend.recording.specialization import SpecializedScalars
from lazytpu.frontend.recording.untraced import untraced
from lazytpu.frontend.tensors import STASH, recorder
from lazytpu.frontend.torch_private import empty_tensor, has_kernel, reinterpret, thread_stash
from lazytpu.trace.value import Value

_kernels: dict[OpOverload, RecordingKernel] = {}


def kernel(op: OpOverload) -> RecordingKernel:
    """Return the kernel of `op`, generated at its first use. Raises NotImplementedError when no rule expresses the
    op."""
    cached = _kernels.get(op)
    if cached is not None:
        return cached
    facts = activation.engine().facts(op)
    returns = op._schema.returns
    single = len(returns) == 1 and "List[" not in str(returns[0].type)
    fresh = not (returns and returns[0].alias_info is not None and returns[0].alias_info.is_write)
    arguments = codegen.arguments(op, facts)
    text, file = codegen.source(op, facts), f"<kernel of {op}>"
    names = [a.name for a in op._schema.arguments]
    keyed = [name for a, name in zip(arguments, names, strict=True) if a.kind != "generator"]
    scalars = SpecializedScalars.of(str(op), keyed, facts.specialized)
    generated = RecordingKernel(op, facts, text, arguments, names, single and fresh, scalars)
    scope = {**_NAMESPACE, "KERNEL": generated, "NAME": sys.intern(str(op)), "DEFAULTS": _defaults(op)}
    exec(compile(text, file, "exec"), scope)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
    generated.call = scope[codegen.function_name(op)]
    untraced(generated.call)
    _kernels[op] = generated
    return generated


_callables: dict[OpOverload, Callable[..., Any]] = {}


def callable_of(op: OpOverload) -> Callable[..., Any]:
    """Return the callable that runs for `op`: its recording kernel, or for an out= overload its functional form and a
    copy."""
    cached = _callables.get(op)
    if cached is None:
        cached = _callables[op] = _writing(op) if out_names(op) else unwritten.filling(op, checked(op, kernel(op).call))
    return cached


def _writing(op: OpOverload) -> Callable[..., Any]:
    functional = activation.engine().functional(op)
    if functional is not None:
        return out_kernel(op, _without_dispatch(functional), kernel(torch.ops.aten.copy_.default).call)
    make = factory(op)
    return kernel(op).call if make is None else factory_kernel(op, make)


def _without_dispatch(functional: OpOverload) -> Callable[..., Any]:
    """Return the callable that records `functional`, without torch's dispatch (3 us) where that would have the same
    effect.

    It is also bypassed where torch's composite kernel may call the out= overload (huber_loss_backward does). Other ops
    may have a hand-written kernel, which torch calls.
    """
    name = functional.name()
    structured = has_kernel(name, "CompositeExplicitAutogradNonFunctional") and torch.Tag.pointwise in functional.tags
    composite = has_kernel(name, "CompositeExplicitAutograd") and not has_kernel(name, "PrivateUse1")
    return callable_of(functional) if structured or composite else functional


def _defaults(op: OpOverload) -> dict[str, Any]:
    return {codegen.safe(a.name): a.default_value for a in op._schema.arguments if a.has_default_value()}


_NAMESPACE: dict[str, Any] = {
    "ABSENT": ABSENT,
    "STASH": STASH,
    "Value": Value,
    "draw": draw,
    "empty_tensor": empty_tensor,
    "exact": exact,
    "failed": failed,
    "foreign": foreign,
    "miss": miss,
    "number_type": number_type,
    "operands": operands,
    "overwrite": overwrite,
    "produce_all": produce_all,
    "recorder": recorder,
    "ref": weakref.ref,
    "reinterpret": reinterpret,
    "run_now": run_now,
    "thread_stash": thread_stash,
    "undraw": undraw,
    "wrote": increment_version,
    "wrap_all": wrap_all,
    "wrap_one": wrap_one,
}
"The names that generated kernels use."
