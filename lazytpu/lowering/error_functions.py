"""The error function, its complement and its inverse in f32 and f64, for the CPU (`elementary.py` has the reason)."""

from __future__ import annotations

import math

from lazytpu.ir import pointwise as ops
from lazytpu.lowering.elementary import EXP_LIMIT, form, reduced
from lazytpu.lowering.formulas import Formula
from lazytpu.lowering.templates.erfcx_series import ERFCX

# erf(x) / x by x^2, |x| < 1; in f64 |x| < 1/2.
ERF = {
    "f32": (
        1.12837911, -0.37612626, 0.112835944, -0.0268542115, 0.00518908724, -0.00080168643, 7.87587487e-05,
    ),
    "f64": (
        1.1283791670955126, -0.3761263890318375, 0.1128379167095487, -0.02686617064499972, 0.0052239776220169365,
        -0.0008548326510724796, 0.00012055286202005714, -1.4923003368152099e-05, 1.637123442577e-06,
        -1.462091340945175e-07,
    ),
}  # fmt: skip
# log(erfc(x)) / x by x, 0.9 < x < 4, in f32.
LOG_ERFC = (
    -1.12872005, -0.634893358, -0.106579907, 0.0239402801, -0.00362526579, 0.000261620502, 1.57844461e-05,
    -4.84037946e-06, 2.94033697e-07,
)  # fmt: skip
# erf_inv(x) / x by w - 2.5, w = -log(1 - x^2) < 5; in f64 by w - 3.125, w < 6.25.
ERF_INV_NEAR = {
    "f32": (
        1.50140941, 0.24664028, -0.00417739293, -0.00125272642, 0.000218349393, -4.9724199e-06, -3.46398519e-06,
        4.68131361e-07, 2.33359678e-08, -8.93192631e-09,
    ),
    "f64": (
        1.6536545626831027, 0.24015818242558834, -0.006033670871426851, -0.0007407025341546431,
        0.00018673420801981186, -1.3882523393957483e-05, -1.3654691758785656e-06, 4.23478816822246e-07,
        -2.907039127564132e-08, -4.1126604371632185e-09, 1.051223377050429e-09, -5.414303283919504e-11,
        -1.2978805369932565e-11, 2.6305268312595183e-12, -8.07192593899004e-14, -4.0020031087558496e-14,
        6.521333511502239e-15, -3.94018812230432e-17, -1.2215637192404172e-16, 1.5510787009902526e-17,
        6.075050702072414e-19, -3.4734793888538036e-19, 1.999259988861535e-20, 3.194015548136271e-21,
        -3.5932028927020693e-22,
    ),
}  # fmt: skip
# The same by sqrt(w) - 3, w >= 5; in f64 by sqrt(w) - 3.25, 6.25 <= w < 16.
ERF_INV_FAR = {
    "f32": (
        2.83297682, 1.00167477, 0.0094435541, -0.0076347338, 0.00570041733, -0.00361017161, 0.0014519277,
        -2.9263585e-05, -0.000283833797, 9.43182749e-05,
    ),
    "f64": (
        3.0838856104922208, 1.0052589676941655, 0.005370914553555033, -0.0037512085082247342, 0.00249144209795696,
        -0.0016882755354488555, 0.0009532893415794137, -0.0003550378137852452, 2.4031512865758357e-05,
        6.828711739251955e-05, -4.732068066544697e-05, 1.2465028224217455e-05, 2.93257845538535e-06,
        -3.985705945648173e-06, 1.4815977874022539e-06, -2.761716223816241e-08, -2.4549818963339823e-07,
        1.3158663683192966e-07, -2.091453334773126e-08, -1.5305397964152548e-08, 7.680200479077053e-09,
    ),
}  # fmt: skip
# The same in f64 by sqrt(w) - 5, w >= 16.
ERF_INV_FARTHEST = (
    4.849906401408584, 1.0103004648645455, -0.000138719318373517, -0.00021503011983024694, 7.59952779202494e-05,
    -1.9681770676949253e-05, 4.526054328559671e-06, -9.930294774982885e-07, 2.2904362741369038e-07,
    -6.75560303537366e-08, 2.9044909320789473e-08, -1.525516018129263e-08, 7.777428539826634e-09,
    -3.471437933896719e-09, 1.3589365341577093e-09, -4.373889663734069e-10, 4.6977303445962824e-11,
    4.280243303730942e-11, -1.543927819720834e-11,
)  # fmt: skip
LEAST_EXPONENT = {"f32": -127, "f64": -1023}
"Of 2^k: zero, as the number is not normal."


@form(ops.ErfOp, "f32")
def erf(x: Formula) -> Formula:
    size = abs(x)
    near = size * (x * x).polynomial(ERF["f32"])
    t = size.at_most(4.0)  # 1 beyond
    far = 1 - (t * t.polynomial(LOG_ERFC)).exp()
    return near.where(size < 0.92, far).signed_as(x)


@form(ops.ErfOp, "f64")
def erf_of_f64(x: Formula) -> Formula:
    """Also six times as fast as XLA's."""
    size = abs(x)
    near = size * (x * x).polynomial(ERF["f64"])
    return near.where(size < 0.5, 1 - far_erfc(size)).signed_as(x)


@form(ops.ErfcOp)
def erfc(x: Formula) -> Formula:
    """1 - erf(x) near 0, else e^(-x^2) times a polynomial. The square is computed in two parts: an error of it is
    relative to the result."""
    size = abs(x)
    near = 1 - x * (x * x).polynomial(ERF[x.dtype])
    far = far_erfc(size)
    return near.where(size < 0.5, (2 - far).where(x < 0, far))


def far_erfc(x: Formula) -> Formula:
    """erfc(x) for x >= 0."""
    x = x.at_most(EXP_LIMIT[x.dtype] ** 0.5)
    high = x.shortened()
    k, p = reduced(-(high * high), -(x - high) * (x + high))
    scaled = ((x - 3) / (x + 3)).polynomial(ERFCX[x.dtype]) / (1 + 2 * x)
    return (scaled + scaled * p) * k.at_least(LEAST_EXPONENT[x.dtype]).power_of_two()


@form(ops.ErfInvOp)
def erf_inv(x: Formula) -> Formula:
    size = abs(x)
    w = -((1 - size) * (1 + size)).log()
    root = w.sqrt()
    if x.dtype == "f32":
        factor = (w - 2.5).polynomial(ERF_INV_NEAR["f32"]).where(w < 5, (root - 3).polynomial(ERF_INV_FAR["f32"]))
    else:
        far = (root - 3.25).polynomial(ERF_INV_FAR["f64"]).where(w < 16, (root - 5).polynomial(ERF_INV_FARTHEST))
        factor = (w - 3.125).polynomial(ERF_INV_NEAR["f64"]).where(w < 6.25, far)
    infinite = x.e.compare("EQ", size.value, x.number(1).value, x.dtype)
    return x * x.number(math.inf).where(infinite, factor)
