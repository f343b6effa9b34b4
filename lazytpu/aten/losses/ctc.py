"""The CTC loss, with lengths as tensors and padded targets. frontend/ops/ctc.py converts other forms to this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _check(b: Builder, values: SSAValue, limit: int, name: str) -> None:
    ok = b.and_(b.compare("GE", values, full(b, 0, values)), b.compare("LE", values, full(b, limit, values)))
    message = f"Expected {name} to have values from 0 to {spelled(limit)} (while checking arguments for ctc_loss)"
    b.check(ok, message, error="RuntimeError")


@rule("aten._ctc_loss.Tensor")
def ctc_loss(
    b: Builder,
    log_probs: SSAValue,
    targets: SSAValue,
    input_lengths: SSAValue,
    target_lengths: SSAValue,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[SSAValue, SSAValue]:
    """(loss [N], log_alpha [N, T, 2M + 1], -inf where no alignment is possible) of log_probs [T, N, C], targets [N, M],
    lengths [N]."""
    steps, rows, classes = shape_of(log_probs)
    length = shape_of(targets)[1]
    _check(b, input_lengths, steps, "input_lengths")
    _check(b, target_lengths, length, "target_lengths")
    if length:
        position = b.iota("i64", (rows, length), 1)
        unused = b.compare("GE", position, b.broadcast_in_dim(b.convert(target_lengths, "i64"), (rows, length), [0]))
        valid = b.and_(
            b.compare("GE", targets, full(b, 0, targets)), b.compare("LT", targets, full(b, classes, targets))
        )
        b.check(b.or_(unused, valid), f"targets of ctc_loss have to be labels from 0 to {spelled(classes - 1)}")
    dtype = dtype_of(log_probs)
    results = [(dtype, (rows,)), (dtype, (rows, steps, 2 * length + 1))]
    operands = [log_probs, targets, input_lengths, target_lengths]
    loss, log_alpha = b.template("ctc_loss", operands, results, blank=blank)
    return loss, log_alpha


@rule("aten._ctc_loss_backward.Tensor")
def ctc_loss_backward(
    b: Builder,
    grad: SSAValue,
    log_probs: SSAValue,
    targets: SSAValue,
    input_lengths: SSAValue,
    target_lengths: SSAValue,
    neg_log_likelihood: SSAValue,
    log_alpha: SSAValue,
    blank: int,
    zero_infinity: bool = False,
) -> SSAValue:
    """The gradient of log_probs [T, N, C]; NaN where no alignment is possible, or 0 with `zero_infinity`."""
    operands = [grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha]
    result = [(dtype_of(log_probs), shape_of(log_probs))]
    return b.template("ctc_loss_backward", operands, result, blank=blank, zero_infinity=zero_infinity)[0]
