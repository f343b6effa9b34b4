"""Attention as models write it: what is recognized, what is not, and values before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime import client
from lazytpu.runtime.program import Program
from tests.lowering.harness import module_of
from tests.passes.modules import parse_main, rewrites

FUSE = "fuse-attention{least=0},dce"
X, P, R = "tensor<2x2x128x8xf32>", "tensor<2x2x128x128xf32>", "tensor<2x2x128xf32>"
ARGUMENTS = f"%q : {X}, %k : {X}, %v : {X}, %g : {X}, %s : tensor<f32>, %m : tensor<2x128xi1>"

SCORES = f"""
    %0 = lazytpu.dot_general %q, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [3]
         precision = default : ({X}, {X}) -> {P}"""
CAUSAL = f"""
    %rows = lazytpu.iota dim = 2 : tensor<1x1x128x128xi32>
    %columns = lazytpu.iota dim = 3 : tensor<1x1x128x128xi32>
    %seen = lazytpu.compare GE %rows, %columns
            : (tensor<1x1x128x128xi32>, tensor<1x1x128x128xi32>) -> tensor<1x1x128x128xi1>
    %mask = lazytpu.broadcast_in_dim %seen dims = [0, 1, 2, 3] : (tensor<1x1x128x128xi1>) -> tensor<2x2x128x128xi1>
    %low = lazytpu.constant -inf : {P}
    %masked = lazytpu.select %mask, %0, %low : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}"""


def softmax(of: str, dim: int = 3) -> str:
    rest = [d for d in range(4) if d != dim]
    return f"""
    %max = lazytpu.reduce max {of} dims = [{dim}] : ({P}) -> {R}
    %1 = lazytpu.broadcast_in_dim %max dims = {rest} : ({R}) -> {P}
    %2 = lazytpu.sub {of}, %1 : {P}
    %3 = lazytpu.exp %2 : {P}
    %sum = lazytpu.reduce add %3 dims = [{dim}] : ({P}) -> {R}
    %4 = lazytpu.broadcast_in_dim %sum dims = {rest} : ({R}) -> {P}
    %p = lazytpu.div %3, %4 : {P}"""


OUTPUT = f"""
    %o = lazytpu.dot_general %p, %v lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
         precision = default : ({P}, {X}) -> {X}"""
RETURN = f"\n    func.return %o : {X}"


def test_causal() -> None:
    rewrites(
        FUSE,
        ARGUMENTS,
        SCORES + CAUSAL + softmax("%masked") + OUTPUT + RETURN,
        f"""
        %o = lazytpu.attention %q, %k, %v causal = true precision = default : {X}
        func.return %o : {X}""",
    )


def test_mask_that_is_not_read_is_taken_from_memory() -> None:
    mask = "tensor<1x1x128x128xi1>"
    rewritten = parse_main(ARGUMENTS, SCORES + CAUSAL.replace("GE", "NE") + softmax("%masked") + OUTPUT + RETURN)
    run_pipeline(rewritten, passes=FUSE, verify=True)
    text = print_module(rewritten)
    op = 'lazytpu.attention %q, %k, %v, %seen extra = "bias" precision = default hidden = nan'
    assert f"{op} : ({X}, {X}, {X}, {mask})" in text


def test_run_time_scale_and_padding() -> None:
    rewrites(
        FUSE,
        ARGUMENTS,
        f"""{SCORES}
        %wide = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> {P}
        %scaled = lazytpu.div %0, %wide : {P}
        %zero = lazytpu.constant 0.0 : tensor<2x1x128x128xf32>
        %low = lazytpu.constant -3.0e+38 : tensor<2x1x128x128xf32>
        %rows = lazytpu.broadcast_in_dim %m dims = [0, 3] : (tensor<2x128xi1>) -> tensor<2x1x128x128xi1>
        %added = lazytpu.select %rows, %zero, %low
                 : (tensor<2x1x128x128xi1>, tensor<2x1x128x128xf32>, tensor<2x1x128x128xf32>) -> tensor<2x1x128x128xf32>
        %bias = lazytpu.broadcast_in_dim %added dims = [0, 1, 2, 3] : (tensor<2x1x128x128xf32>) -> {P}
        %masked = lazytpu.add %scaled, %bias : {P}
        {softmax("%masked")}{OUTPUT}{RETURN}""",
        f"""
        %0 = lazytpu.constant 1.0 : tensor<f32>
        %1 = lazytpu.div %0, %s : tensor<f32>
        %2 = lazytpu.reshape %m : (tensor<2x128xi1>) -> tensor<2x1x1x128xi1>
        %o = lazytpu.attention %q, %k, %v, %2, %1 extra = "bias,scale" precision = default hidden = mean
             : ({X}, {X}, {X}, tensor<2x1x1x128xi1>, tensor<f32>) -> {X}
        func.return %o : {X}""",
    )


def test_a_bias_for_each_head() -> None:
    """A bias as in ALiBi; a row of -inf gives NaN, as in a softmax."""
    narrow = "tensor<2x1x128xf32>"
    rewrites(
        FUSE,
        f"{ARGUMENTS}, %a : {narrow}",
        f"""{SCORES}
        %wide = lazytpu.broadcast_in_dim %a dims = [1, 2, 3] : ({narrow}) -> {P}
        %biased = lazytpu.add %wide, %0 : {P}
        {softmax("%biased")}{OUTPUT}{RETURN}""",
        f"""
        %0 = lazytpu.reshape %a : ({narrow}) -> tensor<1x2x1x128xf32>
        %o = lazytpu.attention %q, %k, %v, %0 extra = "bias" precision = default hidden = nan
             : ({X}, {X}, {X}, tensor<1x2x1x128xf32>) -> {X}
        func.return %o : {X}""",
    )


BACKWARD = f"""
    %dv = lazytpu.dot_general %p, %g lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [2] rhs_contract = [2]
          precision = default : ({P}, {X}) -> {X}
    %dp = lazytpu.dot_general %g, %v lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [3]
          precision = default : ({X}, {X}) -> {P}
    %5 = lazytpu.mul %dp, %p : {P}
    %6 = lazytpu.reduce add %5 dims = [3] : ({P}) -> {R}
    %7 = lazytpu.broadcast_in_dim %6 dims = [0, 1, 2] : ({R}) -> {P}
    %8 = lazytpu.sub %dp, %7 : {P}
    %ds = lazytpu.mul %8, %p : {P}
    %dq = lazytpu.dot_general %ds, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
          precision = default : ({P}, {X}) -> {X}
    %dk = lazytpu.dot_general %q, %ds lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [2] rhs_contract = [2]
          precision = default : ({X}, {P}) -> tensor<2x2x8x128xf32>"""
GRADIENTS = f"\n    func.return %o, %dq, %dk, %dv : {X}, {X}, tensor<2x2x8x128xf32>, {X}"


def test_with_its_backward_pass() -> None:
    """The gradient of the key is transposed, as in its product."""
    rewrites(
        FUSE,
        ARGUMENTS,
        SCORES + softmax("%0") + OUTPUT + BACKWARD + GRADIENTS,
        f"""
        %o = lazytpu.attention %q, %k, %v precision = default : {X}
        %dq, %0, %dv = lazytpu.attention_backward %g, %q, %k, %v precision = default
                     : ({X}, {X}, {X}, {X}) -> ({X}, {X}, {X})
        %dk = lazytpu.transpose %0 [0, 1, 3, 2] : ({X}) -> tensor<2x2x8x128xf32>
        func.return %o, %dq, %dk, %dv : {X}, {X}, tensor<2x2x8x128xf32>, {X}""",
    )


W, BITS, SOME = "tensor<2x2x128x128xui32>", "tensor<2x2x128x128xi1>", "%keep : tensor<f32>, %by : tensor<f32>"
DROPPING = f"{ARGUMENTS}, {SOME}, %back : tensor<f32>, %seed : tensor<ui64>, %at : tensor<ui64>"
DRAWN = f"""
    %bits = lazytpu.random_bits %seed, %at : (tensor<ui64>, tensor<ui64>) -> {W}
    %eight = lazytpu.constant 8 : {W}
    %upper = lazytpu.shift_right_logical %bits, %eight : {W}
    %whole = lazytpu.convert %upper : ({W}) -> {P}
    %small = lazytpu.constant 5.9604644775390625e-08 : {P}
    %unit = lazytpu.mul %whole, %small : {P}
    %below = lazytpu.broadcast_in_dim %keep dims = [] : (tensor<f32>) -> {P}
    %kept = lazytpu.compare LT %unit, %below : ({P}, {P}) -> {BITS}
    %mask = lazytpu.convert %kept : ({BITS}) -> {P}"""


def dropped(x: str, of: str, by: str) -> str:
    return f"""
    %{x}0 = lazytpu.mul {of}, %mask : {P}
    %{x}1 = lazytpu.broadcast_in_dim {by} dims = [] : (tensor<f32>) -> {P}
    %{x} = lazytpu.mul %{x}0, %{x}1 : {P}"""


FORWARD = SCORES + softmax("%0") + DRAWN + dropped("d", "%p", "%by") + OUTPUT.replace("%p", "%d")
DROPPED_BACKWARD = (
    BACKWARD.replace("general %p, %g", "general %d, %g")
    .replace("%5 =", dropped("dd", "%dp", "%back").lstrip() + "\n    %5 =")
    .replace("mul %dp, %p", "mul %dd, %p")
    .replace("sub %dp,", "sub %dd,")
)


def test_dropped_probabilities() -> None:
    """The factor of the backward pass is a separate number in the module."""
    operands = "%q, %k, %v, %keep, %by, %seed, %at"
    types = f"{X}, {X}, {X}, tensor<f32>, tensor<f32>, tensor<ui64>, tensor<ui64>"
    rewritten = parse_main(DROPPING, FORWARD + DROPPED_BACKWARD + GRADIENTS)
    run_pipeline(rewritten, passes=FUSE, verify=True)
    text = print_module(rewritten)
    assert f'lazytpu.attention {operands} extra = "dropout" precision = default : ({types}) -> {X}' in text
    assert f'attention_backward %g, {operands} extra = "dropout" precision = default : ({X}, {types})' in text
    assert text.count("lazytpu.div %back, %by") == 2, "of query and key"
    for gone in ("random_bits", "exp", "dot_general"):
        assert gone not in text


def test_values_of_dropped_probabilities() -> None:
    """The fused form drops the same elements; 8 queries per block."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 2, 128, 8)).astype(np.float32) for _ in range(4)]
    arrays += [np.array(0.3, np.float32), np.ones((2, 128), np.bool_), np.array(0.75, np.float32)]
    arrays += [np.array(x, np.float32) for x in (4 / 3, 1.25)] + [np.array(x, np.uint64) for x in (7 << 40, 9)]
    results: list[list[np.ndarray]] = []
    for passes in ("canonicalize", FUSE, f"{FUSE},decompose-attention"):
        module = parse_main(DROPPING, FORWARD + DROPPED_BACKWARD + GRADIENTS)
        run_pipeline(module, passes=f"{passes},flash-attention{{least=0}}", verify=True)
        buffers = Program.compile(emit(module)).run([client.to_device(x) for x in arrays])
        results.append([client.to_host(x) for x in buffers])
    for some in zip(*results, strict=True):
        for got in some[1:]:
            np.testing.assert_allclose(got, some[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        FORWARD.replace("LT", "GE") + RETURN,
        FORWARD.replace("%eight = lazytpu.constant 8", "%eight = lazytpu.constant 9") + RETURN,
        FORWARD + f"\nfunc.return %o, %d : {X}, {P}",
        FORWARD + DROPPED_BACKWARD.replace("general %d, %g", "general %p, %g") + GRADIENTS,
        FORWARD + BACKWARD.replace("general %p, %g", "general %d, %g") + GRADIENTS,
        FORWARD.replace("general %d", "general %p") + DROPPED_BACKWARD.replace("%d, %g", "%p, %g") + GRADIENTS,
    ],
    ids=["another mask", "other bits", "dropped ones used", "values by all", "gradient by all", "backward alone"],
)
def test_other_dropouts_are_left_alone(body: str) -> None:
    left = parse_main(DROPPING, body)
    before = print_module(left)
    run_pipeline(left, passes="fuse-attention{least=0}", verify=True)
    assert print_module(left) == before


@pytest.mark.parametrize(
    "body",
    [
        SCORES + softmax("%0") + OUTPUT + f"\nfunc.return %o, %p : {X}, {P}",
        SCORES + softmax("%0") + OUTPUT + f"\nfunc.return %o, %max : {X}, {R}",
        SCORES + softmax("%0", dim=2) + OUTPUT + RETURN,
        SCORES + CAUSAL.replace("GE", "NE").replace("1x1x", "1x2x") + softmax("%masked") + OUTPUT + RETURN,
        SCORES + CAUSAL.replace("-inf", "-2.0") + softmax("%masked") + OUTPUT + RETURN,
        SCORES + softmax("%0") + OUTPUT + BACKWARD + f"\nfunc.return %o, %dq, %ds : {X}, {X}, {P}",
        SCORES + softmax("%0") + OUTPUT + BACKWARD.replace("%8, %p", "%8, %3") + GRADIENTS,
        SCORES + f"\n%w = lazytpu.mul %0, %0 : {P}" + softmax("%w") + OUTPUT + RETURN,
        SCORES + f"\n%w = lazytpu.add %0, %0 : {P}" + softmax("%w") + OUTPUT + RETURN,
    ],
    ids=[
        "probabilities used",
        "maximum used",
        "softmax over queries",
        "a mask for each head",
        "masked scores count",
        "gradient of scores used",
        "another gradient",
        "scores scaled by a tensor",
        "scores added to scores",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    left = parse_main(ARGUMENTS, body)
    before = print_module(left)
    run_pipeline(left, passes="fuse-attention{least=0}", verify=True)
    assert print_module(left) == before


SEEN = """
    %m4 = lazytpu.broadcast_in_dim %m dims = [0, 3] : (tensor<2x128xi1>) -> tensor<2x2x128x128xi1>"""


def _masked(number: str, added: bool, of: str = "%0", name: str = "masked") -> str:
    """Scores with the keys outside %m4 hidden, by a select or by an addition."""
    if not added:
        return f"""
    %low_{name} = lazytpu.constant {number} : {P}
    %{name} = lazytpu.select %m4, {of}, %low_{name} : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}"""
    return f"""
    %zero_{name} = lazytpu.constant 0.0 : {P}
    %low_{name} = lazytpu.constant {number} : {P}
    %more_{name} = lazytpu.select %m4, %zero_{name}, %low_{name} : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}
    %{name} = lazytpu.add {of}, %more_{name} : {P}"""


UNMASKED = f"""
    %none = lazytpu.constant 0.0 : {P}
    %du = lazytpu.select %m4, %ds, %none : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}
    %dq ="""


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("number", "hidden"), [("-inf", "nan"), ("-3.4028234663852886e+38", "mean")])
def test_queries_that_see_no_key(number: str, added: bool, hidden: str) -> None:
    """With the mask of one batch all False: output and gradients of the model as written, fused and decomposed, and
    fused and computed by blocks, agree."""
    back = BACKWARD if added else BACKWARD.replace("%dq =", UNMASKED).replace("_general %ds,", "_general %du,")
    back = back if added else back.replace("%q, %ds lhs", "%q, %du lhs")
    body = SEEN + SCORES + _masked(number, added) + softmax("%masked") + OUTPUT + back + GRADIENTS
    rng = np.random.default_rng(0)
    arrays: list[Any] = [rng.standard_normal((2, 2, 128, 8)).astype(np.float32) for _ in range(4)]
    arrays += [np.float32(0), np.stack([np.arange(128) > 5, np.zeros(128, bool)])]
    results = []
    for passes in ("canonicalize", f"{FUSE},decompose-attention", f"{FUSE},flash-attention{{least=0}}"):
        module = parse_main(ARGUMENTS, body)
        run_pipeline(module, passes=passes.split(",decompose")[0].split(",flash")[0], verify=True)
        if passes != "canonicalize":
            flags = f"hidden = {hidden} added = true" if added else f"hidden = {hidden}"
            assert print_module(module).count(f"precision = default {flags} :") == 2
            run_pipeline(module, passes=passes.rsplit(",", 1)[1], verify=True)
        results.append([client.to_host(x) for x in Program.compile(emit(module)).run([*map(client.to_device, arrays)])])
    expected = results[0]
    assert np.isnan(expected[0][1]).all() == (hidden == "nan") and not np.isnan(expected[0][0]).any()
    for got in results[1:]:
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "masks",
    [
        _masked("-1.0e+09", True),
        _masked("-inf", False, name="once") + _masked("-1.0e+09", False, "%once"),
        _masked("-3.0e+38", True, name="once") + _masked("-3.0e+38", True, "%once"),
        _masked("-1.0e+09", False, name="once")
        + f"""
    %half = lazytpu.constant 1.0e-06 : {P}
    %masked = lazytpu.mul %once, %half : {P}""",
    ],
    ids=["scores left in what hides", "of two kinds", "added twice", "hidden scores that count"],
)
def test_masks_that_may_hide_all_keys_are_left_alone(masks: str) -> None:
    left = parse_main(ARGUMENTS, SEEN + SCORES + masks + softmax("%masked") + OUTPUT + RETURN)
    before = print_module(left)
    run_pipeline(left, passes="fuse-attention{least=0}", verify=True)
    assert print_module(left) == before


def test_few_scores_are_left_alone() -> None:
    left = parse_main(ARGUMENTS, SCORES + softmax("%0") + OUTPUT + RETURN)
    before = print_module(left)
    run_pipeline(left, passes="fuse-attention", verify=True)
    assert print_module(left) == before


def _softmax(b: Any, x: Any) -> Any:
    shape = [*x.type.get_shape()]
    axes = list(range(len(shape) - 1))
    exps = b.exp(b.sub(x, b.broadcast_in_dim(b.reduce("max", x, [len(axes)]), shape, axes)))
    return b.div(exps, b.broadcast_in_dim(b.reduce("add", exps, [len(axes)]), shape, axes))


def _merged(b: Any, q: Any, k: Any, v: Any, shift: Any) -> Any:
    """[batch, length, heads, width] operands, batch and heads merged for the products, a window at a run-time place."""
    q, k, v = (b.reshape(b.transpose(x, [0, 2, 1, 3]), (4, 128, 8)) for x in (q, k, v))
    dots = b.reshape(b.dot_general(q, k, [0], [0], [2], [2]), (2, 2, 128, 128))
    dots = b.mul(dots, b.constant(0.3, "f32", (2, 2, 128, 128)))
    rows, columns = (b.iota("i32", (128, 128), dim) for dim in (0, 1))
    rows = b.add(rows, b.broadcast_to(shift, (128, 128)))
    seen = b.and_(
        b.compare("LE", columns, rows), b.compare("LT", b.sub(rows, columns), b.constant(30, "i32", (128, 128)))
    )
    hidden = b.constant(-1e9, "f32", (2, 2, 128, 128))
    dots = b.select(b.not_(b.broadcast_to(seen, (2, 2, 128, 128))), hidden, dots)
    weights = b.reshape(_softmax(b, dots), (4, 128, 128))
    return b.dot_general(v, weights, [0], [0], [1], [2])


def _half(b: Any, q: Any, k: Any, v: Any, shift: Any) -> Any:
    """bf16 operands, three dimensions, the softmax in f32."""
    q, k, v = (b.convert(b.reshape(b.transpose(x, [0, 2, 1, 3]), (4, 128, 8)), "bf16") for x in (q, k, v))
    dots = b.convert(b.dot_general(q, k, [0], [0], [2], [2], dtype="f32"), "bf16")
    weights = b.convert(_softmax(b, b.convert(dots, "f32")), "bf16")
    return b.dot_general(weights, v, [0], [0], [2], [1], dtype="f32")


def _run(build: Callable[..., Any], passes: str) -> tuple[str, np.ndarray, list[np.ndarray]]:
    """The text of the module after `passes`, its results, from a kernel where it has one, and the arguments."""
    types: list[Any] = [("f32", (2, 128, 2, 8))] * 3 + [("i32", ())]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype(np.float32) for _, shape in types[:3]] + [np.array(5, np.int32)]
    rewritten = module_of(build, *types)
    run_pipeline(rewritten, passes=passes, verify=True)
    text = print_module(rewritten)
    run_pipeline(rewritten, passes="flash-attention{least=0}", verify=True)
    (result,) = Program.compile(emit(rewritten)).run([client.to_device(x) for x in arguments])
    return text, client.to_host(result), arguments


PLAIN, FUSED = "canonicalize", "canonicalize,fuse-attention{least=0},dce"


def test_values() -> None:
    plain, expected, _ = _run(_merged, PLAIN)
    fused, result, _ = _run(_merged, FUSED)
    assert "lazytpu.attention" not in plain and "lazytpu.attention" in fused
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_values_in_half_precision() -> None:
    """The kernel keeps scores in f32, where the model rounds them, and is closer to float64."""
    plain, spelled, arguments = _run(_half, PLAIN)
    fused, result, _ = _run(_half, FUSED)
    assert "lazytpu.attention" not in plain and "lazytpu.attention" in fused
    q, k, v = (
        torch.from_numpy(x).bfloat16().double().transpose(1, 2).reshape(4, 128, 8) for x in arguments[:3]
    )
    exact = ((q @ k.mT).softmax(-1) @ v).numpy()
    error = np.abs(result - exact).max()
    assert error < 1e-2 and error < np.abs(spelled - exact).max()
