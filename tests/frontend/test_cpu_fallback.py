"""`lazytpu.options.cpu_fallback`: when off, ops without a rule raise; when on, they run on the CPU, counted and
reported once."""

from __future__ import annotations

import warnings

import pytest
import torch

import lazytpu
from lazytpu.frontend.cpu_fallback import CpuFallbackWarning

LIBRARY = torch.library.Library("fallback_tests", "DEF")
OPS = torch.ops.fallback_tests
for schema, function in {  # ops that torch has on the CPU alone
    "plus(Tensor x, Tensor[] others, *, Device? device=None) -> Tensor": lambda x, others, device=None: sum(
        others, x + 0
    ),
    "both(Tensor x) -> (Tensor, Tensor[])": lambda x: (x + 1, [x + 2, x + 3]),
    "double_(Tensor(a!) x) -> Tensor(a!)": lambda x: x.mul_(2),
    "fill_all(Tensor(a!)[] xs, Scalar value) -> ()": lambda xs, value: [x.fill_(value) for x in xs] and None,
    "noise(Tensor x, *, Generator? generator=None) -> Tensor": lambda x, generator=None: torch.rand(
        x.shape, generator=generator
    ),
    "alias(Tensor(a) x) -> Tensor(a)": lambda x: x.view(-1),
}.items():
    LIBRARY.define(schema)
    LIBRARY.impl(schema.partition("(")[0], function, "CPU")


def count() -> int:
    return lazytpu.metrics()["cpu_fallbacks"]


def test_off_by_default() -> None:
    assert lazytpu.options.cpu_fallback is False
    before = count()
    with pytest.raises(NotImplementedError, match=r"(?s)fallback_tests\.plus.*LAZYTPU_CPU_FALLBACK=1 .* on the CPU"):
        OPS.plus(torch.ones(2, device="tpu"), [])
    with pytest.raises(NotImplementedError, match=r"fallback_tests\.alias") as raised:
        OPS.alias(torch.ones(2, device="tpu"))
    assert "CPU" not in str(raised.value), "a view cannot be made there"
    assert count() == before


def test_counted_and_reported_once_with_the_line() -> None:
    x = torch.arange(3.0).to("tpu")
    before = count()
    with lazytpu.options(cpu_fallback=True):
        with pytest.warns(CpuFallbackWarning, match=r"fallback_tests\.plus.*test_cpu_fallback\.py:\d+"):
            y = OPS.plus(x * 2, [x, x + 1], device=torch.device("tpu"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            z = OPS.plus(x, [])
    assert y.device.type == z.device.type == "tpu"
    assert y.tolist() == [1.0, 5.0, 9.0]
    assert z.tolist() == [0.0, 1.0, 2.0]
    assert count() == before + 2
    with pytest.raises(NotImplementedError, match="plus"):
        OPS.plus(x, [])


@pytest.mark.filterwarnings("ignore::lazytpu.frontend.cpu_fallback.CpuFallbackWarning")
def test_several_results_and_written_arguments() -> None:
    x = torch.arange(6.0).to("tpu").reshape(2, 3)
    with lazytpu.options(cpu_fallback=True):
        doubled, (two, three) = OPS.both(x)
        assert OPS.double_(x[:, 1]).device.type == "tpu"
        ys = [torch.zeros(2, device="tpu"), torch.zeros(1, device="tpu")]
        assert OPS.fill_all(ys, 7) is None
    assert [t.device.type for t in (doubled, two, three)] == ["tpu"] * 3
    assert (doubled[0, 0].item(), two[0, 0].item(), three[0, 0].item()) == (1.0, 2.0, 3.0)
    assert x.tolist() == [[0.0, 2.0, 2.0], [3.0, 8.0, 5.0]]
    assert [y.tolist() for y in ys] == [[7.0, 7.0], [7.0]]


@pytest.mark.filterwarnings("ignore::lazytpu.frontend.cpu_fallback.CpuFallbackWarning")
def test_random_ops_follow_the_devices_seed() -> None:
    x = torch.zeros(5, device="tpu")
    cpu = torch.get_rng_state()
    with lazytpu.options(cpu_fallback=True):
        torch.tpu.manual_seed(3)
        a, b = OPS.noise(x), OPS.noise(x)
        torch.tpu.manual_seed(3)
        c = OPS.noise(x)
    assert a.tolist() == c.tolist() != b.tolist()
    assert torch.equal(cpu, torch.get_rng_state()), "the CPU's own stream is left alone"


def test_views_are_refused() -> None:
    with lazytpu.options(cpu_fallback=True), pytest.raises(NotImplementedError, match="view"):
        OPS.alias(torch.ones(2, device="tpu"))
