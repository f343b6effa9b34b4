"""Recording a program with its derivatives: torch's autograd outside, JAX's inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from lazytpu.frontend.recording.step_starts import NODE
from lazytpu.frontend.torch_private import is_transformed
from lazytpu.kernels.programs import Call, Mask, Program, Residuals

Tensors = Sequence[torch.Tensor]


def apply(program: Program, tensors: Tensors) -> tuple[Any, ...]:
    """Return the results of a program, in its own order, with their derivatives."""
    if not differentiates(tensors):
        return recorded(program, tensors)
    if program.aliases:
        return _copied(program, tensors)
    return _as_tuple((_Transformed if is_transformed() else _Recorded).apply(program, *tensors))


def differentiates(tensors: Tensors) -> bool:
    """Whether a call with these operands needs a derivative, or is under a transform."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return is_transformed()


def recorded(program: Program, tensors: Tensors) -> tuple[Any, ...]:
    """Return the results of a program without derivatives."""
    call = program.call(tensors)
    fresh = iter(call(tensors))
    written = {result: tensors[operand] for operand, result in program.aliases}
    if written:
        increment_version(list(written.values()))
    return tuple([written[i] if i in written else next(fresh) for i in range(len(call.results))])


def _copied(program: Program, tensors: Tensors) -> tuple[Any, ...]:
    """Return the results of a program that writes into operands, whose derivatives torch follows through copies."""
    written = dict(program.aliases)
    values = [t.clone() if operand in written else t for operand, t in enumerate(tensors)]
    results = list(apply(program.without_aliases(), values))
    for operand, result in program.aliases:
        results[result] = tensors[operand].copy_(results[result])
    return tuple(results)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if type(results) is tuple else (results,)


def gradients(program: Program, tensors: Tensors, wanted: Mask, cotangents: Sequence[Any]) -> list[Any]:
    """Return the gradients of `tensors`, None where `wanted` is False. They can be differentiated again."""
    has_cotangent = tuple(c is not None for c in cotangents)
    if not any(has_cotangent) or not any(wanted):
        return [None] * len(wanted)
    results = iter(apply(program.vjp(wanted, has_cotangent), [*tensors, *(c for c in cotangents if c is not None)]))
    return [next(results) if want else None for want in wanted]


def _mark(ctx: Any, outputs: Sequence[Any]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*[o for o in outputs if not (o.is_floating_point() or o.is_complex())])


def _differentiable(forward: Residuals, tensors: Tensors) -> Call:
    """Return the call of a forward pass. Raises RuntimeError when JAX has no gradient of the function."""
    forward.of.call(tensors)  # raises the errors of the function itself
    try:
        return forward.call(tensors)
    except Exception as error:
        raise RuntimeError(
            f"{forward.of.name} is called with an operand that requires a gradient, and JAX has none of it: {error}\n"
            "Write one (defvjp of the kernel, or jax.custom_vjp), or call it under torch.no_grad()"
        ) from error


class _Recorded(torch.autograd.Function):
    """A program whose backward pass uses values of the forward pass. A second derivative differentiates the function
    that computes the gradients from the operands."""

    @staticmethod
    def forward(ctx: Any, program: Program, *tensors: torch.Tensor) -> Any:
        ctx.program, ctx.wanted = program, ctx.needs_input_grad[1:]
        forward = ctx.forward = program.residuals(ctx.wanted)
        ctx.call = call = _differentiable(forward, tensors)
        NODE.computing = True
        try:
            results = call(tensors)
        finally:
            NODE.computing = False
        count = ctx.count = len(results) - call.kept
        ctx.save_for_backward(*tensors, *results)
        _mark(ctx, results[:count])
        return results[:count]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        saved, operands = ctx.saved_tensors, len(ctx.wanted)
        if torch.is_grad_enabled():
            return None, *gradients(ctx.program, saved[:operands], ctx.wanted, cotangents)
        has_cotangent = tuple(c is not None for c in cotangents)
        if not any(has_cotangent):
            return None, *[None] * operands
        backward = ctx.forward.backward(ctx.call, has_cotangent)
        results = iter(recorded(backward, [*saved, *(c for c in cotangents if c is not None)]))
        return None, *[next(results) if want else None for want in ctx.wanted]


class _Transformed(torch.autograd.Function):
    """A program under the transforms of torch.func and forward-mode derivatives."""

    @staticmethod
    def forward(program: Program, *tensors: torch.Tensor) -> Any:
        return recorded(program, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.program, *tensors = inputs
        ctx.wanted = tuple(t.is_floating_point() or t.is_complex() for t in tensors)
        ctx.floats = tuple(o.is_floating_point() or o.is_complex() for o in output)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        _mark(ctx, output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return None, *gradients(ctx.program, ctx.saved_tensors, ctx.wanted, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        has_tangent = tuple(t is not None and want for t, want in zip(tangents, ctx.wanted, strict=True))
        chosen = [t for t, give in zip(tangents, has_tangent, strict=True) if give]
        results = iter(apply(ctx.program.jvp(has_tangent), [*ctx.saved_tensors, *chosen]))
        return tuple([next(results) if is_float else None for is_float in ctx.floats])

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: Program, *tensors: torch.Tensor) -> Any:
        results = apply(program.vmap(tuple(in_dims[1:]), info.batch_size), tensors)
        return results, (0,) * len(results)
