"""Pointwise ops against torch's CPU: every dtype of the CPU, distinguishing values, static and run-time numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lazytpu.aten import registry
from lazytpu.aten.dispatch import decomposition
from tests.aten.batch import Case, check_all
from tests.aten.deferred import check
from tests.aten.harness import run
from tests.aten.samples import ALL, FLOATS, INTEGERS, finite, nonzero, normal, sample

A = torch.ops.aten


def overloads(*names: str) -> list[Any]:
    return [getattr(getattr(A, name.partition(".")[0]), name.partition(".")[2] or "default") for name in names]


def cases(names: str, dtypes: Any, *args: Any, **kwargs: Any) -> list[Case]:
    """Return a Case for each op and dtype; an argument that is a function creates its tensor from the dtype."""
    return [
        Case(
            op,
            tuple(a(d) if callable(a) else a for a in args),
            {k: v(d) if callable(v) else v for k, v in kwargs.items()},
        )
        for op in overloads(*names.split())
        for d in dtypes
    ]


def other(dtype: torch.dtype) -> torch.Tensor:
    return sample(dtype, 1)


def third(dtype: torch.dtype) -> torch.Tensor:
    return sample(dtype, 2)


def mask(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(len(sample(dtype))) % 3 == 0


UNARY = """abs neg sign sgn ceil floor trunc round frac positive exp expm1 exp2 log log1p sqrt rsqrt reciprocal sin
cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid sinc erf erfc erfinv lgamma digamma deg2rad rad2deg
signbit isnan isinf isposinf isneginf logical_not bitwise_not nan_to_num angle _conj_physical relu silu mish
hardsigmoid hardswish elu celu leaky_relu hardtanh hardshrink softshrink softplus logit log_sigmoid_forward"""


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_unary(dtype: torch.dtype) -> None:
    assert check_all(cases(UNARY, [dtype], sample), numbers=(False,)) >= 10


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_logarithms_of_powers_of_their_base_are_whole(dtype: torch.dtype) -> None:
    check_all(cases("log2 log10", [dtype], sample), numbers=(False,))
    powers = torch.arange(-37, 38, dtype=torch.float64)
    if dtype in (torch.float32, torch.bfloat16):
        check_all([Case(A.log2.default, ((2**powers).to(dtype),), exact=True)], numbers=(False,))


def test_complex_logarithms() -> None:
    check_all(cases("log2 log10", [torch.complex64], other), numbers=(False,))


BINARY = """add.Tensor mul.Tensor div.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and
logical_or logical_xor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_left_shift.Tensor
bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor maximum minimum fmax fmin atan2 hypot logaddexp2
heaviside nextafter copysign.Tensor xlogy.Tensor special_xlog1py ldexp.Tensor complex polar clamp_min.Tensor
clamp_max.Tensor gcd lcm _prelu_kernel sub.Tensor logaddexp"""


# The CPU's complex pow is NaN at 0^0, and its complex sub and mul at infinities follow no standard: finite bases only.
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_binary(dtype: torch.dtype) -> None:
    first = (lambda d: sample(d)[1:]) if dtype.is_complex else sample
    second = (lambda d: other(d)[1:]) if dtype.is_complex else other
    assert check_all(cases(BINARY, [dtype], first, second), numbers=(False,)) >= 5


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_quotients_and_remainders(dtype: torch.dtype) -> None:
    def divisor(d: torch.dtype) -> torch.Tensor:
        return nonzero(d, 1)

    check_all(cases("remainder.Tensor fmod.Tensor floor_divide", [dtype], sample, divisor))
    for mode in ("trunc", "floor", None):
        check_all(cases("div.Tensor_mode", [dtype], sample, divisor, rounding_mode=mode), numbers=(False,))
        check_all(cases("div.Scalar_mode", [dtype], sample, -2, rounding_mode=mode))


def test_integer_division_by_zero_is_an_error() -> None:
    x, zero = torch.tensor([7, -7]), torch.tensor([2, 0])
    for op in (A.remainder.Tensor, A.fmod.Tensor, A.floor_divide.default):
        with pytest.raises(Exception, match="ZeroDivisionError"):
            run(op, x, zero, outs=[x])


NUMBERS = """add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Scalar remainder.Scalar fmod.Scalar pow.Tensor_Scalar
eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar
copysign.Scalar bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar xlogy.Scalar_Other
special_xlog1py.other_scalar clamp_min clamp_max"""


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("number", [2, 0.1, True], ids=str)
def test_numbers(dtype: torch.dtype, number: float) -> None:
    check_all(cases(NUMBERS, [dtype], sample, number))


def test_numbers_that_do_not_fit_wrap_around() -> None:
    check_all(cases("eq.Scalar lt.Scalar add.Scalar mul.Scalar", [torch.int8, torch.uint8], sample, 300))
    check_all(cases("add.Scalar eq.Scalar", [torch.uint8], sample, -1))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, -1, -2, -3, 0.5, -0.5, 1.5, 2.0, True], ids=str)
def test_powers(number: float) -> None:
    check_all(cases("pow.Tensor_Scalar", ALL, nonzero, number), numbers=(False,))
    if number not in (0, -1, -2, -3):  # 0^x of a complex x; a negative base of integers makes the CPU's sum of powers
        check_all(cases("pow.Scalar", FLOATS, number, sample), numbers=(True,))


def test_number_to_the_power_of_a_tensor() -> None:
    exponents = torch.arange(6)
    check_all([Case(A.pow.Scalar, (n, exponents.to(d))) for n in (0, 1, 2, -3) for d in INTEGERS])
    check_all([Case(A.xlogy.Scalar_Self, (0.7, sample(d))) for d in FLOATS])
    check_all([Case(A.remainder.Scalar_Tensor, (7, nonzero(d, 1))) for d in (*FLOATS, *INTEGERS)])
    check_all([Case(A.bitwise_and.Scalar_Tensor, (6, sample(d))) for d in INTEGERS])
    check_all([Case(A.bitwise_left_shift.Scalar_Tensor, (3, sample(d))) for d in INTEGERS])


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("alpha", [1, 0.3, -2], ids=str)
def test_alpha_and_value(dtype: torch.dtype, alpha: float) -> None:
    if alpha != int(alpha) and not (dtype.is_floating_point or dtype.is_complex):
        return  # torch refuses a fraction for integers
    x, y, z = (normal(dtype, 64, seed=i) * 5 if dtype is not torch.bool else sample(dtype, i) for i in range(3))
    cases = [Case(op, (x, y), {"alpha": alpha}) for op in (A.add.Tensor, A.sub.Tensor, A.rsub.Tensor)]
    cases.append(Case(A.rsub.Scalar, (x, 0.7), {"alpha": alpha}))
    if dtype is not torch.uint8:
        cases += [Case(op, (x, y, z), {"value": alpha}) for op in (A.addcmul.default, A.addcdiv.default)]
    check_all(cases)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
def test_lerp(dtype: torch.dtype) -> None:
    x, y = normal(dtype, 64), normal(dtype, 64, seed=1)
    weights = torch.linspace(-1, 2, 64).to(dtype)
    check_all([Case(A.lerp.Scalar, (x, y, w)) for w in (0.1, 0.7, 2.0, -0.3)] + [Case(A.lerp.Tensor, (x, y, weights))])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_choices(dtype: torch.dtype) -> None:
    one = [dtype]
    check_all(cases("where.self", one, mask, sample, other) + cases("where.self", one, mask, sample, torch.tensor(1.5)))
    check_all(cases("masked_fill.Scalar", one, sample, mask, 1) + cases("masked_fill.Scalar", one, sample, mask, True))
    check_all(cases("masked_fill.Tensor", one, sample, mask, torch.tensor(2)))
    check_all(cases("masked_fill.Scalar", one, sample, torch.tensor([[True], [False]]), 1))


@pytest.mark.parametrize("dtype", [d for d in ALL if not d.is_complex], ids=str)
def test_clamp(dtype: torch.dtype) -> None:
    bounds = [(-1, 2), (None, 0.3), (0.1, None), (3, 1), (2.5, 7)]
    check_all([Case(A.clamp.default, (sample(dtype), low, high)) for low, high in bounds])
    check_all([Case(A.clamp.Tensor, (sample(dtype), low, sample(dtype, 2))) for low in (None, sample(dtype, 1))])


def test_clamp_and_nan() -> None:
    x = torch.tensor([1.0, math.nan, 3.0])
    check(A.clamp.default, x, math.nan, 2.0)
    check(A.clamp.Tensor, x, torch.tensor(math.nan), torch.tensor(2.0))


def test_types_are_promoted_by_category_and_rank() -> None:
    """The result's dtype is torch's, for tensors with dims, 0-d tensors and numbers of every category."""
    tensors = [normal(d, 4) if d is not torch.bool else torch.tensor([True, False, True, True]) for d in ALL]
    scalars = [t[2] for t in tensors]
    pairs = [(x, y) for x in tensors for y in [*tensors, *scalars] if torch.result_type(x, y) is not torch.complex32]
    assert check_all([Case(A.add.Tensor, pair) for pair in pairs], numbers=(False,)) > 150
    check_all([Case(op, pair) for op in (A.div.Tensor, A.eq.Tensor) for pair in pairs[::3]], numbers=(False,))
    check_all([Case(A.add.Scalar, (t, n)) for t in [*tensors, *scalars] for n in (True, 2, 1.5, 1 + 2j)])


def test_shapes_are_broadcast() -> None:
    check_all([
        Case(A.add.Tensor, (normal(torch.float32, 3, 1), normal(torch.float32, 4))),
        Case(A.div.Tensor, (normal(torch.float32, 2, 1, 4), torch.tensor(3))),
        Case(A.maximum.default, (normal(torch.float32, 0, 3), normal(torch.float32, 3))),
        Case(A.where.self, (torch.tensor([[True], [False]]), torch.tensor(1.0), normal(torch.float32, 3))),
        Case(A.exp.default, (torch.tensor(0.5),)),
        Case(A.exp.default, (torch.empty(0, 2),)),
        Case(A.pow.Tensor_Tensor, (torch.tensor(2.0), torch.arange(4))),
        Case(A.clamp.Tensor, (torch.tensor(0.5), normal(torch.float32, 3), None)),
        Case(A.addcmul.default, (torch.zeros(2, 3), torch.ones(3), torch.tensor([[2.0], [3.0]]))),
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_have_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    """These cases show whether CPU kernels compute in f32 or in the dtype itself, and whether they round numbers
    first."""
    x, y, z = (normal(dtype, 256, seed=i) for i in range(3))
    number = torch.tensor(0.1)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        *((f"{name}.Tensor", (x, y)) for name in ("add", "sub", "mul", "div", "remainder", "fmod")),
        *(
            (f"{name}.Scalar", (x, 0.1))
            for name in ("add", "sub", "rsub", "mul", "div", "remainder", "fmod", "lt", "eq")
        ),
        *((f"{name}.Tensor", (x, number)) for name in ("add", "mul", "div")),
        *((f"{name}.Tensor", (number, x)) for name in ("add", "mul", "div")),
        *(("pow.Tensor_Scalar", (x.abs(), e)) for e in (2, 3, -1, -2, 0.5, 0.1)),
        ("pow.Scalar", (0.1, x)),
        ("lerp.Scalar", (x, y, 0.1)),
        ("lerp.Tensor", (x, y, z.abs())),
        ("addcdiv", (x, y, z)),
        ("leaky_relu", (x, 0.1)),
        ("hardshrink", (x, 0.1)),
        ("softshrink", (x, 0.1)),
        ("clamp", (x, -0.1, 0.1)),
        ("round.decimals", (x,)),
        ("tanh", (x,)),
        ("gelu", (x,)),
    ]
    cases = [Case(overloads(name)[0], args, exact=True) for name, args in calls]
    cases += [Case(op, (x, y), {"alpha": 0.1}, exact=True) for op in (A.add.Tensor, A.sub.Tensor)]
    for mode in ("floor", "trunc"):
        cases += [Case(A.div.Tensor_mode, (x, d), {"rounding_mode": mode}, exact=True) for d in (y, number)]
    check_all(cases)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_with_parameters(dtype: torch.dtype) -> None:
    x = sample(dtype)
    calls = {
        "hardtanh": [(-0.1, 0.3)],
        "threshold": [(0.1, 20.0)],
        "leaky_relu": [(0.1,)],
        "elu": [(0.7,), (0.7, 1.3, 0.9)],
        "celu": [(0.3,)],
        "hardshrink": [(0.3,)],
        "softshrink": [(0.3,)],
        "softplus": [(0.7, 5.0)],
        "logit": [(0.1,)],
    }
    cases = [Case(overloads(name)[0], (x, *args)) for name, lists in calls.items() for args in lists]
    # The CPU's gelu of inf is NaN in f32: erf's vector kernel.
    cases += [Case(A.gelu.default, (x[~torch.isinf(x)],), {"approximate": a}) for a in ("none", "tanh")]
    cases += [Case(A.glu.default, (x[:30].reshape(3, 10), 1)), Case(A.glu.default, (x[:24].reshape(4, 6), -2))]
    cases += [Case(A.round.decimals, (x,), {"decimals": d}) for d in (0, 2, -1)]
    cases += [Case(A.nan_to_num.default, (x, 1.0, 2.0, -3.0)), Case(A.frexp.Tensor, (x,))]
    check_all(cases)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_activations(dtype: torch.dtype) -> None:
    # At NaN and infinities the CPU's vector kernels disagree among dtypes, and with its scalar ones.
    x, g, w = finite(dtype), normal(dtype, 31), normal(dtype, 31, seed=1)
    names = "sigmoid_backward tanh_backward silu_backward mish_backward hardsigmoid_backward hardswish_backward"
    cases = [Case(op, (g, x)) for op in overloads(*names.split())]
    cases.append(Case(A.gelu_backward.default, (g, x), {"approximate": "none"}))
    # Where tanh is almost 1, rounding dominates 1 - tanh^2.
    cases.append(Case(A.gelu_backward.default, (g, x.clamp(-4, 4)), {"approximate": "tanh"}))
    calls = {
        "threshold_backward": (0.1,),
        "leaky_relu_backward": (0.1, False),
        "hardtanh_backward": (-0.1, 0.3),
        "hardshrink_backward": (0.3,),
        "softshrink_backward": (0.3,),
        "softplus_backward": (0.7, 5.0),
        "logit_backward": (0.1,),
    }
    cases += [Case(overloads(name)[0], (g, x, *args)) for name, args in calls.items()]
    cases += [Case(A.elu_backward.default, (g, 0.7, 1.3, 0.9, result, x)) for result in (True, False)]
    cases.append(Case(A.logit_backward.default, (g, torch.linspace(-0.1, 1.1, 31).to(dtype))))
    cases.append(Case(A._prelu_kernel_backward.default, (g, x, w)))
    cases.append(Case(A.log_sigmoid_backward.default, (g, x, A.log_sigmoid_forward(x)[1])))
    cases.append(Case(A.glu_backward.default, (g[:15].reshape(3, 5), w[:30].reshape(3, 10), 1)))
    cases.append(Case(A.native_dropout_backward.default, (g, x > 0, 2.0)))
    cases.append(Case(A.native_dropout_backward.default, (torch.arange(31), x > 0, 2.0)))
    check_all(cases)


def test_complex_numbers() -> None:
    z = sample(torch.complex64)
    check_all([
        Case(A.view_as_real_copy.default, (z,)),
        Case(A.view_as_complex_copy.default, (normal(torch.float64, 3, 2),)),
        Case(A.sigmoid_backward.default, (z, z.flip(0))),
        Case(A.tanh_backward.default, (z, z.flip(0))),
        Case(A.silu_backward.default, (z, z.flip(0))),
        Case(A.mul.Tensor, (z, 2.5)),
    ])  # fmt: skip


def test_powers_of_tensors() -> None:
    # XLA reads an integer exponent modulo 64: larger exponents, whose powers have overflowed, wrap differently.
    exponents = torch.arange(28) - 5
    cases = [Case(A.pow.Tensor_Tensor, (sample(d), exponents.to(d))) for d in INTEGERS]
    cases += [Case(A.pow.Tensor_Tensor, (sample(d), other(d))) for d in FLOATS]
    cases.append(Case(A.pow.Tensor_Tensor, (sample(torch.complex64)[1:], other(torch.complex64)[1:])))
    unsigned = torch.tensor([2, 3, 5], dtype=torch.uint8), torch.tensor([200, 253, 7], dtype=torch.uint8)
    # Without the emitters of fusions, XLA:CPU computes (-1)**-1 of integers as 0.
    check_all([*cases, Case(A.pow.Tensor_Tensor, unsigned)], numbers=(False,), options={})


SPECIAL = """i0 special_i0e special_i1 special_i1e special_modified_bessel_i0 special_modified_bessel_i1
special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
special_scaled_modified_bessel_k1 special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_spherical_bessel_j0 special_airy_ai special_erfcx special_ndtri special_log_ndtr special_entr"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_special_functions(dtype: torch.dtype) -> None:
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 20.0, -20.0, math.inf, -math.inf, math.nan])
    points = torch.cat([edges, torch.linspace(-12, 12, 49)])
    check_all(cases(SPECIAL, [dtype], lambda d: points.to(d) if d.is_floating_point else sample(d)), numbers=(False,))


def test_special_functions_of_two() -> None:
    a, x = normal(torch.float32, 40).abs() * 4 + 0.1, normal(torch.float32, 40, seed=1).abs() * 4 + 0.1
    cases = [Case(op, (a, x)) for op in (A.igamma.default, A.igammac.default)]
    cases += [Case(A.special_zeta.default, (a + 1.1, x)), Case(A.mvlgamma.default, (x + 3, 3))]
    cases += [Case(A.polygamma.default, (n, x)) for n in (0, 1, 2, 3)]
    check_all(cases, numbers=(False,))


@pytest.mark.parametrize("kind", ["t", "u", "v", "w"])
def test_chebyshev_polynomials(kind: str) -> None:
    x, n = torch.linspace(-1.5, 1.5, 25), torch.arange(-2, 23).float()
    for prefix in ("", "shifted_"):
        packet = f"special_{prefix}chebyshev_polynomial_{kind}"
        with_tensor, with_number = overloads(packet, f"{packet}.n_scalar")
        check_all([Case(with_tensor, (x, n)), *(Case(with_number, (x, k)) for k in (1, 12))], numbers=(True,))


@pytest.mark.parametrize("name", ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l"])
def test_orthogonal_polynomials(name: str) -> None:
    x, n = torch.linspace(-1.5, 1.5, 25).double(), torch.arange(-2, 23).double()
    with_tensor, with_number = overloads(f"special_{name}", f"special_{name}.x_scalar")
    legendre = Case(A.special_legendre_polynomial_p.default, (x, n))
    check_all([Case(with_tensor, (x, n)), Case(with_number, (0.3, n)), legendre], numbers=(True,))


def test_every_core_pointwise_op_has_a_rule() -> None:
    """All ops tagged `core` and `pointwise` have rules; each other pointwise op has a rule or a decomposition, except
    `equal`, whose result is a Python bool."""
    rules = registry.load()
    without: list[str] = []
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, kind = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        ):
            continue
        op = getattr(getattr(A, packet), kind or "default")
        if torch.Tag.pointwise not in op.tags or op._schema.is_mutable or str(op) in rules:
            continue
        if torch.Tag.core in op.tags or decomposition(op) is None:
            without.append(str(op))
    assert without == ["aten.equal.default"]


def test_in_place_and_out_compute_in_the_promoted_dtype() -> None:
    half, single, integers = normal(torch.float16, 8), normal(torch.float32, 8, seed=1), torch.arange(8)
    check(A.add_.Tensor, half, single, alpha=0.3)
    check(A.eq_.Tensor, single, integers)
    check(A.floor_divide_.Tensor, single, integers + 1)
    check(A.ldexp_.default, single, integers)
    check(A.__ilshift__.Scalar, integers, 2)
    check(A.sigmoid.out, half, out=torch.zeros(8))
    check(A.add.out, half, half, alpha=3, out=torch.zeros(8, dtype=torch.float64))
    check(A.lt.Tensor_out, integers, single, out=torch.zeros(8))


def test_zeta_at_one_is_infinite_at_every_q() -> None:
    q = torch.tensor([-7.25, -1.0, 0.5, 1.0, 3.0, math.nan])
    check(A.special_zeta.default, torch.ones(6), q)
