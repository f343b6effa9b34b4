"""CTC losses. Lengths are recorded as tensors and targets are padded to rows, so one program serves all lengths.

Lengths on the device are read only for concatenated targets, whose padded size depends on them.
"""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel

aten = torch.ops.aten
Lengths = torch.Tensor | list[int]
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_CHECKING = "(while checking arguments for ctc_loss_allocate_outputs)"


def _check(log_probs: torch.Tensor, targets: torch.Tensor, counts: dict[str, Lengths], blank: int) -> None:
    """Make torch's checks of shapes and dtypes, in its order and with its messages."""
    if log_probs.numel() == 0:
        raise RuntimeError("log_probs tensor must not be empty")
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"\"ctc_loss_cpu\" not implemented for '{scalar_type(log_probs.dtype)}'")
    if targets.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"Expected tensor for argument #2 'targets' to have scalar type Int; but got {targets.dtype} instead "
            f"{_CHECKING}"
        )
    if log_probs.dim() != 3:
        raise RuntimeError(
            f"Expected 3-dimensional tensor, but got {log_probs.dim()}-dimensional tensor for argument #1 'log_probs' "
            f"{_CHECKING}"
        )
    if targets.dim() not in (1, 2):
        raise RuntimeError(
            f"Expected 1 to 2 dimensions, but got {targets.dim()}-dimensional tensor for argument #2 'targets' "
            f"{_CHECKING}"
        )
    if not 0 <= blank < log_probs.shape[2]:
        raise RuntimeError("blank must be in label range")
    for name, lengths in counts.items():
        if (lengths.numel() if isinstance(lengths, torch.Tensor) else len(lengths)) != log_probs.shape[1]:
            raise RuntimeError(f"{name} must be of size batch_size")


def _check_lengths(name: str, lengths: list[int], limit: int | None) -> None:
    for length in lengths:
        if length < 0:
            raise RuntimeError(f"Expected {name} to have value at least 0, but got value {length} {_CHECKING}")
        if limit is not None and length > limit:
            raise RuntimeError(f"Expected {name} to have value at most {limit}, but got value {length} {_CHECKING}")


def _check_size(targets: torch.Tensor, dim: int, size: int, least: str = "") -> None:
    got = targets.shape[dim]
    if got < size or (got != size and not least):
        raise RuntimeError(
            f"Expected tensor to have size {least}{size} at dimension {dim}, but got size {got} for argument #2 "
            f"'targets' {_CHECKING}"
        )


def _known(lengths: Lengths) -> Lengths:
    """Return lengths as a list if they are on the host."""
    if isinstance(lengths, torch.Tensor):
        if lengths.dtype not in _INTEGERS:
            raise RuntimeError("input_lengths and target_lengths must be integral")
        return lengths if lengths.device.type == "tpu" else lengths.reshape(-1).tolist()
    return list(lengths)


def _padded(targets: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return the rows of concatenated targets, padded with the elements that follow."""
    width, starts = max(lengths), [sum(lengths[:i]) for i in range(len(lengths))]
    if width == 0:
        return targets.reshape(len(lengths), 0)
    places = torch.tensor(starts).unsqueeze(1) + torch.arange(width)
    places = places.clamp(max=targets.shape[0] - 1).to(targets.device)
    return targets.index_select(0, places.reshape(-1)).reshape(places.shape)


def _prepare(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (targets [N, M], input lengths [N], target lengths [N]) on the device of log_probs."""
    inputs, lengths = _known(input_lengths), _known(target_lengths)
    _check(log_probs, targets, {"input_lengths": inputs, "target_lengths": lengths}, blank)
    if targets.dim() == 1 and isinstance(lengths, torch.Tensor):
        lengths = lengths.reshape(-1).tolist()
    if isinstance(lengths, list):
        _check_lengths("target_lengths", lengths, None)
    if targets.dim() == 2:
        _check_size(targets, 0, log_probs.shape[1])
        if isinstance(lengths, list):
            _check_size(targets, 1, max(lengths), "at least ")
    else:
        assert isinstance(lengths, list)
        _check_size(targets, 0, sum(lengths))
        targets = _padded(targets, lengths)
    if isinstance(inputs, list):
        _check_lengths("input_lengths", inputs, log_probs.shape[0])
    return targets, _on_device(inputs, log_probs), _on_device(lengths, log_probs)


def _on_device(lengths: Lengths, like: torch.Tensor) -> torch.Tensor:
    if isinstance(lengths, torch.Tensor):
        return lengths.reshape(-1)
    return torch.tensor(lengths, dtype=torch.int64).to(like.device)


def forward(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of aten::_ctc_loss: (loss [N], log_alpha).

    Raises the CPU's errors; for lengths on the device, at the next host read.
    """
    prepared = _prepare(log_probs, targets, input_lengths, target_lengths, blank)
    return kernel(aten._ctc_loss.Tensor).call(log_probs, *prepared, blank, zero_infinity)


def backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The kernel of aten::_ctc_loss_backward."""
    prepared = _prepare(log_probs, targets, input_lengths, target_lengths, blank)
    return kernel(aten._ctc_loss_backward.Tensor).call(
        grad, log_probs, *prepared, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


def of_tensors(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The kernel of aten::ctc_loss.Tensor, composed of ops that autograd sees; torch's own reads the lengths first."""
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if lengths.dtype not in _INTEGERS:
            raise RuntimeError(f"{name} must be integral")
    if target_lengths.device.type != "tpu" and input_lengths.device.type != "tpu":
        lengths_on_host = input_lengths.reshape(-1).tolist(), target_lengths.reshape(-1).tolist()
        return aten.ctc_loss.IntList(log_probs, targets, *lengths_on_host, blank, reduction, zero_infinity)
    batched = log_probs.dim() == 3
    rows = log_probs if batched else log_probs.unsqueeze(1)
    on_device = targets.to(log_probs.device, torch.int64)
    result = aten._ctc_loss.Tensor(rows, on_device, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        result = torch.where(result == float("inf"), torch.zeros_like(result), result)
    if reduction == 1:
        return (result / target_lengths.to(result.device, result.dtype).clamp(min=1)).mean()
    if reduction == 2:
        return result.sum()
    return result if batched else result.squeeze(0)


@override("aten._ctc_loss.Tensor")
def infer_forward(log_probs: torch.Tensor, targets: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's own meta function takes lists of lengths."""
    steps, rows, _classes = log_probs.shape
    return log_probs.new_empty(rows), log_probs.new_empty((rows, steps, 2 * targets.shape[1] + 1))


@override("aten._ctc_loss_backward.Tensor")
def infer_backward(log_probs: torch.Tensor, **_: Any) -> torch.Tensor:
    """The result is contiguous, with the shape of log_probs."""
    return log_probs.new_empty(log_probs.shape)


KERNELS: dict[str, Any] = {
    "_ctc_loss": forward,
    "_ctc_loss.Tensor": forward,
    "_ctc_loss_backward": backward,
    "_ctc_loss_backward.Tensor": backward,
}

COMPOSITES: dict[str, Any] = {"ctc_loss.Tensor": of_tensors}
