"""The flash kernels, interpreted on the CPU, and attention by blocks, compared with decomposed attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from lazytpu.ir.attention import Attention
from lazytpu.ir.attention_work import NO_SEGMENT
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.lowering.templates import attention_blocks as blocks
from lazytpu.lowering.templates import flash_attention as flash
from lazytpu.lowering.templates.attention_blocks import Extra, How
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK
from tests.lowering.harness import module_of


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    """Create lazytpu's client before jax creates one: with libtpu but no TPU, jax searches for one for minutes."""
    client.client()


def values(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _keys(length: int, *first: int) -> np.ndarray:
    """A mask of keys: each batch sees the keys from its `first` on."""
    return np.arange(length)[None, None, None] >= np.array(first)[:, None, None, None]


def _ids(*lengths: int) -> np.ndarray:
    """Segments of these lengths, in ascending order."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


NONE = np.int32(NO_SEGMENT)
ODD = (2, 1, 100, 16)
PACKED = (
    np.stack([_ids(10, 30, 60), np.where(np.arange(100) < 40, NONE, _ids(50, 50))]),
    np.stack([_ids(40, 30, 30), _ids(50, 50)]),
)
CASES: dict[str, tuple[Any, Any, list[Extra], How]] = {
    "grouped": ((1, 2, 200, 16), (1, 1, 100, 16), [Extra()], How(window=30)),
    "shifted": ((1, 1, 128, 16), (1, 1, 256, 16), [Extra(None, np.int32(n)) for n in (100, -7, 0)], How(True, 40)),
    "stored": (
        (2, 2, 128, 8),
        (2, 1, 128, 8),
        [Extra(np.tri(128, k=k, dtype=bool)[None, None]) for k in (0, -3)],
        How(hidden="nan"),
    ),
    "nan added": (ODD, ODD, [Extra(_keys(100, 100, 3))], How(hidden="nan", added=True)),
    "packed": (ODD, ODD, [Extra(segments=PACKED), Extra(_keys(100, 20, 70), segments=PACKED)], How(True)),
    "packed shifted": (
        (1, 1, 128, 16),
        (1, 1, 256, 16),
        [Extra(None, np.int32(n), (_ids(50, 78)[None], _ids(60, 196)[None])) for n in (100, 0)],
        How(True, 40),
    ),
    "packed nan": (
        ODD,
        ODD,
        [Extra(np.tri(100, dtype=bool)[None, None], segments=(PACKED[0], PACKED[1][:1]))],
        How(hidden="nan"),
    ),
    "mean added": ((2, 2, 100, 16), ODD, [Extra(_keys(100, 100, 3))], How(True, 60, hidden="mean", added=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernels(case: str) -> None:
    """In all cases, some queries see no key."""
    shape, of_key, extras, how = CASES[case]
    q, k, v, grad = values(shape, of_key, of_key, shape)

    def both(forward: Any, backward: Any) -> Any:
        def run(q: Any, k: Any, v: Any, grad: Any, *extra: Any) -> Any:
            operands = Extra(*extra)
            output, sums = forward(q / 4, k, v, operands, how)
            return output, *backward(grad, output, sums, q / 4, k, v, operands, how)

        return jax.jit(run, compiler_options=dict(QUICK))

    interpreted = (partial(f, interpret=True) for f in (flash.forward_kernel, flash.backward_kernel))
    kernels, expected = both(*interpreted), both(flash.in_blocks, flash.in_blocks_backward)
    for extra in extras:
        operands = (q, k, v, grad, *vars(extra).values())
        for got, want in zip(kernels(*operands), expected(*operands), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


Q, SHARED = (1, 4, 20, 6), (1, 2, 50, 6)
DROPOUT = [np.array(0.75, np.float32), np.array(4 / 3, np.float32), np.array(7 << 40 | 5, np.uint64), np.uint64([9])[0]]
OPERANDS: dict[str, dict[str, Any]] = {
    "padding": {"bias": _keys(50, 20), "shift": 3},
    "nan added": {"bias": _keys(50, 20), "hidden": "nan", "added": True},
    "mean": {"bias": _keys(50, 20), "hidden": "mean"},
    "mean added": {"bias": np.random.default_rng(1).random((4, 20, 50)) > 0.9, "hidden": "mean", "added": True},
    "a bias for each query": {"bias": values((20, 50))[0], "of_bias": True},
    "a bias for each head": {"bias": values((4, 1, 50))[0], "of_bias": True},
    "dropout": {"dropout": True},
    "packed": {"segments": (np.stack([_ids(5, 15)]), np.stack([_ids(9, 31, 10)]))},
    "packed, of 64 bits": {"segments": (_ids(5, 15)[None] << np.int64(40), _ids(9, 41)[None] << np.int64(40))},
    "packed, hidden": {"segments": (_ids(5, 15)[None], _ids(0, 9, 41)[None]), "hidden": "mean", "added": True},
}


@pytest.mark.parametrize("case", OPERANDS)
def test_the_two_passes_agree(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both passes give the same values here, with blocks of 8 queries and odd lengths."""
    options = dict(OPERANDS[case])
    monkeypatch.setattr(blocks, "ROWS", 8)
    bias, shift = options.pop("bias", None), options.pop("shift", None)
    drops, of_bias = options.pop("dropout", False), options.pop("of_bias", False)
    segments: tuple[np.ndarray, ...] = options.pop("segments", ())
    arrays: list[np.ndarray] = values(Q, Q, SHARED, SHARED)
    arrays += [] if bias is None else [bias]
    arrays += [*segments, *(DROPOUT if drops else [])]

    def build(b, grad, q, k, v, *rest):
        if segments:
            wide = [b.broadcast_in_dim(x, (1, 1, 20, 50), dims) for x, dims in zip(rest, ([0, 2], [0, 3]), strict=True)]
            rest = [b.compare("EQ", *wide)]
        offset = None if shift is None else b.constant(shift, "i32")
        dropout, bias = (rest, None) if drops else (None, *rest)
        of = Attention(q, k, v, bias, None, offset, dropout, True, 9 if shift else 0, 0.3, **options)
        return b.attention(of), *b.attention_backward(grad, of, of_bias)

    results = []
    for passes in ("decompose-attention", "flash-attention{least=0}"):
        names = {"bool": "i1", "uint64": "ui64", "float32": "f32", "float64": "f64", "int32": "i32"}
        names["int64"] = "i64"
        module = module_of(build, *[(names[str(x.dtype)], x.shape) for x in arrays])
        run_pipeline(module, passes=passes, verify=True)
        program = Program.compile(emit(module), options=QUICK)
        results.append([client.to_host(x) for x in program.run([client.to_device(x) for x in arrays])])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    if case.startswith("nan"):
        assert np.isnan(results[0][0]).any()
    if case == "mean":
        np.testing.assert_allclose(results[0][0][0, 0, 0], arrays[3][0, 0].mean(0), rtol=1e-4)


def test_lowered_for_a_tpu() -> None:
    """Forward once, and the two kernels of the backward pass; the forward kernel that they trace is dead."""

    def build(b, q, k, v):
        of = Attention(q, k, v, causal=True, precision="default")
        return b.attention(of), *b.attention_backward(q, of)

    module = module_of(build, *[("bf16", (1, 2, 250, 64))] * 3)
    run_pipeline(module, passes="flash-attention{least=0}", verify=True)
    text = stablehlo_text(emit(module, platform="tpu"))
    assert text.count("@tpu_custom_call") == 4
    assert "256x256" not in text and "250x250" not in text


@pytest.mark.parametrize(("dtype", "own"), [("bfloat16", True), ("float32", False)])
def test_only_wide_operands_are_multiplied_in_several_passes(dtype: str, own: bool) -> None:
    """The TPU's kernel compiler rejects "highest" for 16-bit operands."""
    q = jax.ShapeDtypeStruct((1, 1, 128, 64), dtype)
    kernel = partial(flash.forward_kernel, extra=Extra(), how=How(True, precision="highest"))
    jaxpr = jax.make_jaxpr(kernel)(q, q, q)
    assert ("Precision.HIGHEST" in str(jaxpr)) is not own
