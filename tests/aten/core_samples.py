"""Sample arguments for every ATen overload that torch tags as core, one line each; families share a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lazytpu.frontend.torch_private import op_names

GENERATOR = torch.Generator().manual_seed(7)


def t(*shape: int) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=GENERATOR)


def u(*shape: int) -> torch.Tensor:
    """Return numbers in (0.1, 0.9)."""
    return torch.rand(shape, generator=GENERATOR) * 0.8 + 0.1


def i(n: int, *shape: int) -> torch.Tensor:
    """Return integers below n."""
    return torch.randint(n, shape, generator=GENERATOR)


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


X, Y, U = t(2, 3), t(2, 3), u(2, 3)
I, J = i(50, 2, 3), i(6, 2, 3) + 1  # noqa: E741
IMAGE, VOLUME = t(2, 4, 6, 6), t(1, 2, 4, 4, 4)
WEIGHT = t(6, 2, 3, 3)
ROW, INDEX = t(5, 3), torch.tensor([4, 0, 2])
PLACES = torch.tensor([[0, 2, 1], [1, 0, 2]])
STATISTICS = u(4), u(4) + 0.5
BROKEN = torch.tensor([[0.0, float("inf"), float("nan")], [1.0, -float("inf"), -0.0]])
POOLED = torch.ops.aten.max_pool2d_with_indices.default(IMAGE, [2, 2], [2, 2])
NORMED = torch.ops.aten.native_layer_norm.default(X, [3], t(3), t(3), 1e-5)
GROUPED = torch.ops.aten.native_group_norm.default(IMAGE, t(4), t(4), 2, 4, 36, 2, 1e-5)

UNARY = """abs acos asin asinh atan atanh ceil cos cosh elu erf exp expm1 floor gelu hardtanh leaky_relu log log10 log1p
log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc alias any argmax argmin amax
amin clone mean prod isnan isinf"""
BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor atan2 copy maximum minimum"
COMPARISONS = "eq ne lt le gt ge"
WITH_NUMBER = "add.Scalar sub.Scalar mul.Scalar div.Scalar fmod.Scalar remainder.Scalar pow.Tensor_Scalar"

SAMPLES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    **{name: [call(U), call(t(4, 5))] for name in UNARY.split()},
    **{name: [call(X, Y), call(X, t(3)), call(X, Y.t().contiguous().t())] for name in BINARY.split()},
    **{f"{name}.Tensor": [call(X, Y), call(I, J)] for name in COMPARISONS.split()},
    **{f"{name}.Scalar": [call(X, 0.25), call(I, 7)] for name in COMPARISONS.split()},
    **{name: [call(X, 2), call(X, 0.5)] for name in WITH_NUMBER.split()},
    **{f"bitwise_{name}.Tensor": [call(I, J)] for name in ("and", "or", "xor")},
    **{f"bitwise_{name}.Scalar": [call(I, 13)] for name in ("and", "or", "xor")},
    **{f"logical_{name}": [call(X > 0, Y)] for name in ("and", "or", "xor")},
    "_adaptive_avg_pool2d": [call(IMAGE, [3, 2])],
    "_adaptive_avg_pool2d_backward": [call(t(2, 4, 3, 2), IMAGE)],
    "_adaptive_avg_pool3d": [call(VOLUME, [2, 2, 1])],
    "_cdist_forward": [call(t(4, 3), t(5, 3), 2.0, None), call(t(4, 3), t(5, 3), 1.0, None)],
    "_embedding_bag": [call(ROW, torch.tensor([1, 0, 4, 2]), torch.tensor([0, 2]), False, mode) for mode in (0, 1, 2)],
    "_fft_c2r": [call(torch.complex(t(2, 5), t(2, 5)), [1], 0, 8)],
    "_fft_r2c": [call(t(3, 8), [1], 0, True)],
    "_local_scalar_dense": [call(torch.tensor(2.5)), call(torch.tensor([3]))],
    "_log_softmax": [call(X, 1, False)],
    "_softmax": [call(X, 1, False)],
    "_native_batch_norm_legit": [call(IMAGE, t(4), t(4), *STATISTICS, True, 0.1, 1e-5)],
    "_native_batch_norm_legit.no_stats": [call(IMAGE, t(4), t(4), True, 0.1, 1e-5)],
    "_native_batch_norm_legit_no_training": [call(IMAGE, t(4), t(4), *STATISTICS, 0.1, 1e-5)],
    "_pdist_forward": [call(ROW)],
    "_to_copy": [call(X, dtype=torch.float64), call(X * 100, dtype=torch.int32), call(X)],
    "acosh": [call(U + 1)],
    "adaptive_avg_pool1d": [call(t(2, 3, 6), [3])],
    "addmm": [call(t(4), t(2, 3), t(3, 4), beta=0.5, alpha=2)],
    "any.dim": [call(X > 0, 1)],
    "any.dims": [call(X > 0, [0, 1], True)],
    "arange.start_step": [call(1, 10, 3), call(0.0, 1.0, 0.25)],
    "as_strided": [call(t(12), [2, 3], [4, 1], 1)],
    "atan2.out": [call(X, Y, out=torch.empty(2, 3))],
    "avg_pool1d": [call(t(2, 3, 8), [2])],
    "avg_pool2d": [call(IMAGE, [2, 2]), call(IMAGE, [3, 3], [2, 2], [1, 1], True, False)],
    "avg_pool2d_backward": [call(t(2, 4, 3, 3), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None)],
    "avg_pool3d": [call(VOLUME, [2, 2, 2])],
    "bitwise_not": [call(I)],
    "bmm": [call(t(2, 3, 4), t(2, 4, 5))],
    "cat": [call([X, Y], 1)],
    "clamp": [call(X, -0.5, 0.5)],
    "clamp.Tensor": [call(X, -U, U)],
    "col2im": [call(t(2, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])],
    "constant_pad_nd": [call(X, [1, 2, 0, 1], 0.5)],
    "convolution": [
        call(IMAGE, WEIGHT, t(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
        call(IMAGE, t(4, 3, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
    ],
    "convolution_backward": [
        call(t(2, 6, 6, 6), IMAGE, WEIGHT, [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True, True, True])
    ],
    "cumsum": [call(X, 1)],
    "diagonal": [call(t(3, 4), 1)],
    "div.Scalar_mode": [call(X, 0.3, rounding_mode=mode) for mode in (None, "trunc", "floor")],
    "div.Tensor_mode": [call(X, U, rounding_mode="floor"), call(I, J, rounding_mode="trunc")],
    "embedding": [call(ROW, INDEX)],
    "embedding_dense_backward": [call(t(3, 3), INDEX, 5, 0, False)],
    "empty.memory_format": [call([2, 3])],
    "empty_strided": [call([2, 3], [1, 2])],
    "expand": [call(t(1, 3), [4, 3])],
    "fill.Scalar": [call(X, 2.5)],
    "flip": [call(X, [0, 1])],
    "fmod.Tensor": [call(X, U)],
    "full": [call([2, 3], 1.5), call([2], 3)],
    "full_like": [call(X, 4)],
    "gather": [call(X, 1, PLACES)],
    "grid_sampler_2d": [call(IMAGE, t(2, 3, 3, 2), mode, pad, False) for mode, pad in ((0, 0), (1, 1), (2, 2))],
    "index.Tensor": [call(ROW, [INDEX]), call(ROW, [None, torch.tensor([0, 2])])],
    "index_put": [call(ROW, [INDEX], t(3, 3)), call(ROW, [INDEX], t(3), True)],
    "index_select": [call(ROW, 0, INDEX)],
    "isinf": [call(BROKEN)],
    "isnan": [call(BROKEN)],
    "masked_scatter": [call(X, X > 0, t(6))],
    "max.dim": [call(X, 1)],
    "max_pool2d_with_indices": [call(IMAGE, [2, 2]), call(IMAGE, [3, 3], [2, 2], [1, 1])],
    "max_pool2d_with_indices_backward": [
        call(torch.ones_like(POOLED[0]), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, POOLED[1])
    ],
    "max_pool3d_with_indices": [call(VOLUME, [2, 2, 2])],
    "mean.dim": [call(X, [0], True)],
    "min.dim": [call(X, 0, True)],
    "mm": [call(t(2, 3), t(3, 4))],
    "native_dropout": [call(X, 0.5, True)],
    "native_group_norm": [call(IMAGE, t(4), t(4), 2, 4, 36, 2, 1e-5)],
    "native_group_norm_backward": [
        call(t(2, 4, 6, 6), IMAGE, GROUPED[1], GROUPED[2], t(4), 2, 4, 36, 2, [True, True, True])
    ],
    "native_layer_norm": [call(X, [3], t(3), t(3), 1e-5)],
    "native_layer_norm_backward": [call(Y, X, [3], NORMED[1], NORMED[2], t(3), t(3), [True, True, True])],
    "nonzero": [call(X > 0)],
    "permute": [call(IMAGE, [0, 2, 3, 1])],
    "pow.Scalar": [call(2.0, X)],
    "pow.Tensor_Tensor": [call(U, X)],
    "prod.dim_int": [call(X, 1)],
    "rand": [call([3, 4])],
    "randn": [call([3, 4])],
    "randperm": [call(8)],
    "reflection_pad1d": [call(t(2, 3, 6), [2, 1])],
    "reflection_pad2d": [call(IMAGE, [2, 1, 0, 3])],
    "reflection_pad3d": [call(VOLUME, [1, 1, 2, 0, 1, 2])],
    "remainder.Tensor": [call(X, U), call(-I, J)],
    "repeat": [call(X, [2, 1, 2])],
    "replication_pad2d": [call(IMAGE, [2, 1, 0, 3])],
    "replication_pad3d": [call(VOLUME, [1, 1, 2, 0, 1, 2])],
    "resize_": [call(t(6), [2, 3])],
    "scalar_tensor": [call(2.5), call(True)],
    "scatter.src": [call(X, 1, PLACES, Y)],
    "scatter.value": [call(X, 1, PLACES, 0.5)],
    "scatter_add": [call(X, 1, PLACES, Y)],
    "scatter_reduce.two": [call(X, 1, PLACES, Y, kind) for kind in ("sum", "prod", "mean", "amax", "amin")],
    "select.int": [call(X, 1, 2)],
    "select_scatter": [call(X, t(2), 1, 2)],
    "slice.Tensor": [call(ROW, 0, 1, 5, 2)],
    "slice_scatter": [call(ROW, t(2, 3), 0, 1, 5, 2)],
    "sort": [call(X), call(X, 0, True)],
    "split_with_sizes": [call(ROW, [2, 3])],
    "squeeze.dim": [call(t(2, 1, 3), 1)],
    "squeeze.dims": [call(t(2, 1, 1), [1, 2])],
    "sum.dim_IntList": [call(X, [1])],
    "sym_is_contiguous": [call(X)],
    "sym_numel": [call(X)],
    "sym_size.int": [call(X, 1)],
    "sym_storage_offset": [call(X[1])],
    "sym_stride.int": [call(X, 0)],
    "topk": [call(t(3, 8), 3)],
    "unsqueeze": [call(X, 1)],
    "upsample_bilinear2d.vec": [call(IMAGE, [9, 4], False, None), call(IMAGE, None, True, [1.5, 2.0])],
    "upsample_nearest2d.vec": [call(IMAGE, [9, 4], None), call(IMAGE, None, [1.5, 2.0])],
    "var.correction": [call(X, [1], correction=0)],
    "var.dim": [call(X, [1])],
    "view": [call(X, [3, 2])],
    "where.self": [call(X > 0, X, Y)],
}


def core_overloads() -> Iterator[Any]:
    """Return every overload that torch tags as core."""
    for full in op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if namespace == "aten" and op is not None and torch.Tag.core in op.tags:
            yield op


def key(op: Any) -> str:
    """Return `add.Tensor`, or `exp` for a default overload."""
    return str(op).removeprefix("aten.").removesuffix(".default")
