"""NaN, infinities and signed zeros come out of whole programs as on the CPU device, at every size and in every mode.
XLA:CPU computes short rows by loops and long ones by libraries, so each test has both."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

import lazytpu

Function = Callable[[torch.Tensor], torch.Tensor]
LONG = (3, 4099)
OTHERS = ((3, 7), (1, 1), (2, 3, 1031))
MODES = ("fused", "strict")

REDUCTIONS: dict[str, Function] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "amax": lambda x: x.amax(-1),
    "amin of all but one": lambda x: x.amin(tuple(range(1, x.dim()))),
    "amax of columns": lambda x: x.transpose(0, -1).amax(0),
    "max dim": lambda x: torch.cat([part.double().flatten() for part in x.max(-1)]),
    "min dim": lambda x: torch.cat([part.double().flatten() for part in x.min(-1)]),
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "argmax of all": lambda x: x.argmax(),
    "aminmax": lambda x: torch.stack(list(torch.aminmax(x, dim=-1))),
    "norm inf": lambda x: torch.linalg.vector_norm(x, inf),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -inf, dim=-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "cummin": lambda x: x.cummin(-1)[1],
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(0),
    "max pool": lambda x: F.max_pool1d(x.reshape(1, 1, -1), 5, 1, 2),
    "scatter": lambda x: x.new_zeros(4).scatter_reduce(0, _places(x), x.flatten(), "amax"),
    "index reduce": lambda x: x.new_zeros(4).index_reduce(0, _places(x), x.flatten(), "amin", include_self=False),
    "sum of relu": lambda x: x.relu().sum(),
    "mean of clamp": lambda x: x.clamp(-1, 1).mean(-1),
    "sum of maximum": lambda x: torch.maximum(x, x.flip(-1)).sum(-1),
    "max of relu6": lambda x: F.relu6(x).amax(-1),
    "product of clamp": lambda x: x.clamp_max(0.5).prod(-1),
}


def _places(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.numel(), device=x.device) % 4


def planted(shape: tuple[int, ...], dtype: torch.dtype, draw: random.Random) -> torch.Tensor:
    """Numbers, one NaN or several, and infinities beside them."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(draw.getrandbits(30))).to(dtype)
    flat = x.view(-1)
    for value in (inf, -inf, -0.0, 0.0)[: flat.numel() - 1]:
        flat[draw.randrange(flat.numel())] = value
    for _ in range(draw.choice((1, 1, 3))):
        flat[draw.choice((0, flat.numel() - 1, draw.randrange(flat.numel())))] = draw.choice((nan, -nan))
    return x


def expect(function: Function, x: torch.Tensor, what: str) -> None:
    wanted, got = function(x), function(x.to("tpu")).cpu()
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, equal_nan=True, msg=lambda text: f"{what} of {list(x.shape)}: {text}")


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("shape", [LONG, *(pytest.param(shape, marks=pytest.mark.long) for shape in OTHERS)])
def test_reductions_keep_nan(shape: tuple[int, ...]) -> None:
    draw = random.Random(f"{shape}")
    with lazytpu.options(on_host=False):
        for name, function in REDUCTIONS.items():
            expect(function, planted(shape, torch.float32, draw), name)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (torch.bfloat16, "fused"),
        (torch.float64, "strict"),
        pytest.param(torch.float32, "strict", marks=pytest.mark.long),
        pytest.param(torch.bfloat16, "strict", marks=pytest.mark.long),
        pytest.param(torch.float64, "fused", marks=pytest.mark.long),
    ],
)
def test_reductions_keep_nan_in_modes(dtype: torch.dtype, mode: str) -> None:
    draw = random.Random(f"{dtype} {mode}")
    names = sorted(REDUCTIONS) if dtype is torch.float32 else draw.sample(sorted(REDUCTIONS), 8)
    with lazytpu.mode(mode), lazytpu.options(on_host=False):
        for name in names:
            expect(REDUCTIONS[name], planted(LONG, dtype, draw), name)


def test_programs_for_many_sizes_keep_nan() -> None:
    draw = random.Random(3)
    with lazytpu.options(on_host=False):
        for name in ("max", "amax of columns", "argmin", "norm inf", "sum of relu", "aminmax"):
            for length in (4099, 4220, 4111, 4250):
                x = planted((3, length), torch.float32, draw)
                moved = x.to("tpu")
                lazytpu.mark_dynamic(moved, 1)
                wanted, got = REDUCTIONS[name](x), REDUCTIONS[name](moved).cpu()
                torch.testing.assert_close(got, wanted, equal_nan=True)


def test_clip_grad_norm_sees_nan() -> None:
    weight = torch.zeros(5000, device="tpu", requires_grad=True)
    weight.grad = torch.ones(5000).index_fill(0, torch.tensor([4321]), nan).to("tpu")
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_([weight], 1.0, norm_type=inf, error_if_nonfinite=True)


BOUNDED: dict[str, Function] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh to 0": lambda x: F.hardtanh(x, -1.0, 0.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "from 0": lambda x: x.clamp(0.0),
    "from -0": lambda x: x.clamp(min=-0.0),
    "to 0": lambda x: x.clamp(max=0.0),
}


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_zeros_at_a_bound_keep_their_sign(name: str) -> None:
    with lazytpu.options(on_host=False):
        for size in (1, 2, 4099):
            x = torch.zeros(size)
            x[::2] = -0.0
            assert torch.equal(BOUNDED[name](x.to("tpu")).cpu().signbit(), BOUNDED[name](x).signbit())


def test_values_of_max_are_the_elements_at_its_indices() -> None:
    with lazytpu.options(on_host=False):
        for size in (3, 4099):
            x = torch.zeros(2, size)
            x[0, 0], x[1, 1:] = -0.0, -0.0
            for function in (torch.max, torch.min):
                wanted, got = function(x, 1), function(x.to("tpu"), 1)
                assert torch.equal(got.indices.cpu(), wanted.indices)
                assert torch.equal(got.values.cpu().signbit(), wanted.values.signbit())


SPECIALS = (nan, -nan, inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 1.5)
KEPT: dict[str, Function] = {
    "itself": torch.clone,
    "negated": lambda x: -x,
    "abs": torch.abs,
    "where": lambda x: torch.where(x == x, x, -x),
    "cat": lambda x: torch.cat([x, -x.flip(0)]),
    "pad": lambda x: F.pad(x, (1, 1), value=-0.0),
    "copysign": lambda x: torch.copysign(torch.ones_like(x), x),
    "stack": lambda x: torch.stack([x, x]).t(),
    "bits": lambda x: x.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[x.element_size()]),
    "from bits": lambda x: KEPT["bits"](x).view(x.dtype),
    "roll": lambda x: x.roll(2),
}


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        pytest.param(torch.float64, marks=pytest.mark.long),
        pytest.param(torch.float16, marks=pytest.mark.long),
    ],
)
def test_constants_keep_their_bits(dtype: torch.dtype) -> None:
    """Constants of a program are folded, data are not: both have the bits of the CPU. Of bfloat16, torch itself
    does not keep the sign of NaN."""
    specials = [value for value in SPECIALS if dtype is not torch.bfloat16 or value == value]
    with lazytpu.options(on_host=False):
        for name, function in KEPT.items():
            filled = [torch.full((3,), value, dtype=dtype, device="tpu") for value in specials]
            got = [function(torch.cat(filled)), *map(function, filled)]
            for y, x in zip(got, [torch.cat([f.cpu() for f in filled]), *[f.cpu() for f in filled]], strict=True):
                wanted = function(x)
                as_bits = KEPT["bits"] if wanted.is_floating_point() else torch.clone
                assert torch.equal(as_bits(y.cpu()), as_bits(wanted)), name


@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_nan_for_the_largest(largest: bool) -> None:
    draw = random.Random(5)
    with lazytpu.options(on_host=False):
        for dtype in (torch.float32, torch.bfloat16):
            for rows, size, k in ((4, 64, 3), (4, 64, 30), (2, 4099, 5)):
                x = planted((rows, size), dtype, draw)
                wanted, got = x.topk(k, largest=largest), x.to("tpu").topk(k, largest=largest)
                torch.testing.assert_close(got.values.cpu(), wanted.values, equal_nan=True)
                chosen = x.gather(1, got.indices.cpu())
                torch.testing.assert_close(chosen, wanted.values, equal_nan=True)


STEPS: tuple[Function, ...] = (
    F.relu,
    torch.abs,
    torch.neg,
    lambda x: x.clamp(-0.5, 2.0),
    lambda x: torch.maximum(x, x.flip(-1)),
    lambda x: torch.minimum(x, x.roll(3, -1) * 2),
    lambda x: x + x.amax(-1, keepdim=True),
    lambda x: x - x.amin(0, keepdim=True),
    lambda x: torch.where(x > 0, x, -x),
    lambda x: x.softmax(-1),
    lambda x: x.cummax(-1)[0],
    lambda x: x * x.relu().mean(-1, keepdim=True),
    lambda x: torch.fmax(x, x.flip(0)),
    lambda x: x.sort(-1)[0],
    lambda x: x.nan_to_num(0.25) + x,
    lambda x: x.masked_fill(x == inf, -0.0),
)
ENDS: tuple[Function, ...] = (
    lambda x: x,
    lambda x: x.max(),
    lambda x: x.aminmax()[0],
    lambda x: x.sum(-1),
    lambda x: x.min(0)[0],
    lambda x: x.logsumexp(-1),
    lambda x: torch.linalg.vector_norm(x, inf),
)


def check_random_program(seed: int) -> None:
    """The CPU's NaN and infinities come out of a random program in fused and in strict mode."""
    draw = random.Random(seed)
    steps = [draw.choice(STEPS) for _ in range(draw.randint(1, 4))]
    end, shape = draw.choice(ENDS), draw.choice(((2, 9), (3, 4099), (70, 600), (1, 9001)))
    x = planted(shape, draw.choice((torch.float32, torch.float32, torch.float64)), draw)

    def run(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return end(x)

    wanted = run(x)
    for mode in MODES:
        with lazytpu.mode(mode), lazytpu.options(on_host=False):
            got = run(x.to("tpu")).cpu()
        torch.testing.assert_close(
            got, wanted, equal_nan=True, rtol=1e-3, atol=1e-3, msg=lambda text, mode=mode: f"{seed} {mode}: {text}"
        )


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    check_random_program(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 300))
def test_more_random_programs(seed: int) -> None:
    check_random_program(seed)
