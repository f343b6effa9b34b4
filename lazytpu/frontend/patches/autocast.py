"""`torch.autocast("tpu")`: the ops that run in the lower precision, in float32, and in the widest of their inputs'
dtypes.

The lists are CUDA's (ATen/autocast_mode.h of torch 2.13). Every other op falls through and computes in the dtypes of
its inputs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.torch_private import AUTOCAST, backward_id, without_keys

# These run on the matrix unit: inputs are cast to the dtype of the autocast region.
LOWER_PRECISION = [
    "_convolution",
    "_convolution.deprecated",
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
]

# The same for these. CUDA casts in their inner op, `_cudnn_rnn` (ATen/cudnn/AutocastRNN.cpp).
RECURRENT = ["lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"]
PACKED = ["lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data"]

# These lose too much in the lower precision: inputs are cast to float32.
FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss_nd",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
]

# Sums with a dtype argument: float32 unless the caller gives another one.
FLOAT32_RESULT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]

# These need inputs of one dtype: all are cast to the widest.
WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "stack",
]

_libraries: list[torch.library.Library] = []  # kept alive: the registrations of a torch library end with it


def eligible(x: Any) -> bool:
    """Return whether autocast may cast x: a floating-point tensor of the device, except float64, which the user
    chose."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.device.type == "tpu" and x.dtype is not torch.float64


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Cast x, or the tensors in it, to `dtype` where eligible."""
    if isinstance(x, list | tuple):
        return [cast(y, dtype) for y in x]
    return x.to(dtype) if eligible(x) and x.dtype is not dtype else x


def _cast_to(op: Any, choose: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_keys(AUTOCAST):
            dtype = choose((args, tuple(kwargs.values())))
            return op(*[cast(a, dtype) for a in args], **{name: cast(a, dtype) for name, a in kwargs.items()})

    return kernel


def _cast_packed(op: Any) -> Callable[..., Any]:
    """Return a casting kernel for an op whose first argument is the data of packed sequences."""
    from lazytpu.frontend.ops.packing import OPS

    cast_others = _cast_to(op, _lower)

    def kernel(data: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = _lower(data)
        if eligible(data) and data.dtype is not dtype:
            with without_keys(AUTOCAST):
                data = OPS.convert(data, dtype)
        return cast_others(data, *args, **kwargs)

    return kernel


def _lower(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype("tpu")


def _float32(_: Any) -> torch.dtype:
    return torch.float32


def _widest(args: Any) -> torch.dtype:
    return torch.float32 if _holds_float32(args) else torch.get_autocast_dtype("tpu")


def _holds_float32(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return any(_holds_float32(y) for y in x)
    return eligible(x) and x.dtype is torch.float32


def _float32_result(op: Any) -> Callable[..., Any]:
    def kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        with without_keys(AUTOCAST):
            if eligible(self) and kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args):
                kwargs["dtype"] = torch.float32
            return op(self, *args, **kwargs)

    return kernel


def _refuse_binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, combine the two "
        "layers using torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are "
        "safe to autocast."
    )


def overload(name: str) -> Any:
    """Return the op of an entry of the lists above: `pow.Scalar`, or `mm` for mm.default."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def prepare() -> None:
    """Let ops without a policy fall through, and set the default dtype of `torch.autocast("tpu")` to bfloat16."""
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.append(fallback)
    _default_to_bfloat16()


def install() -> None:
    """Register the policies (15 ms)."""
    aten = torch.library.Library("aten", "IMPL")
    _libraries.append(aten)
    for names, choose in ((LOWER_PRECISION + RECURRENT, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            aten.impl(name, _cast_to(overload(name), choose), "AutocastPrivateUse1")
    for name in PACKED:
        aten.impl(name, _cast_packed(overload(name)), "AutocastPrivateUse1")
    for name in FLOAT32_RESULT:
        aten.impl(name, _float32_result(overload(name)), "AutocastPrivateUse1")
    aten.impl("binary_cross_entropy", _refuse_binary_cross_entropy, "AutocastPrivateUse1")


def _default_to_bfloat16() -> None:
    """Set each thread's default to bfloat16 when it first enters `torch.autocast("tpu")`.

    torch's default for a device in Python is float16, per thread; a TPU computes in bfloat16.
    """
    original = torch.amp.autocast_mode.autocast.__init__
    thread = threading.local()

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        # A checkpoint's region in a backward pass is undone with that pass, so it is not the thread's first.
        if device_type == "tpu" and not hasattr(thread, "known") and backward_id() == -1:
            thread.known = True
            if torch.get_autocast_dtype("tpu") is torch.float16:
                torch.set_autocast_dtype("tpu", torch.bfloat16)
        original(self, device_type, *args, **kwargs)

    torch.amp.autocast_mode.autocast.__init__ = init
