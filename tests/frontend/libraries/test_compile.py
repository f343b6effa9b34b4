"""torch.compile: with every backend a module on the device gives eager's results, gradients and training."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own warnings at the import of Dynamo and inductor


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "aot_eager": {"backend": "aot_eager"},
    "tpu": {"backend": "tpu"},
    "dynamic": {"dynamic": True},
}


@pytest.mark.filterwarnings("ignore::lazytpu.dynamo.varying.SizeWarning")
@pytest.mark.parametrize("way", WAYS)
def test_results_and_gradients_agree_with_eager(way: str) -> None:
    reference = make()
    model = copy.deepcopy(reference).to("tpu")
    compiled = torch.compile(model, **WAYS[way])
    for size in (3, 3, 5):
        x = torch.randn(size, 8)
        expected = reference(x)
        expected.square().sum().backward()
        got = compiled(x.to("tpu"))
        got.square().sum().backward()
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["default", "aot_eager"])
def test_training_is_eagers(way: str) -> None:
    def train(model: nn.Module, device: str, **options: Any) -> list[float]:
        forward = torch.compile(model, **options) if options or device == "tpu" else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.linspace(-1, 1, 40).reshape(5, 8).to(device)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    reference = make()
    expected = train(reference, "cpu")
    got = train(make().to("tpu"), "tpu", **WAYS[way])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_compiled_code_may_call_lazytpu() -> None:
    @torch.compile
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        lazytpu.mark_step()
        return y + 1

    x = torch.ones(3).to("tpu")
    steps = lazytpu.metrics()["steps"]
    y = function(x)
    assert lazytpu.metrics()["steps"] == steps + 1
    torch.testing.assert_close(y.cpu(), torch.ones(3).sin() * 2 + 1)


def test_ops_of_many_kinds_are_captured_whole() -> None:
    """Random ops, factories, float64, complex numbers, in-place writes through views, autocast: one graph each."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[1:].mul_(2)
        with torch.autocast("tpu", dtype=torch.bfloat16):
            z = x @ x.t()
        drawn = nn.functional.dropout(torch.ones(50, device=x.device), 0.5)
        return y, z, torch.arange(3, device="tpu"), x.double().sin(), x.to(torch.complex64) * 1j, drawn

    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("tpu")
    torch.manual_seed(5)
    expected = function(x)
    torch.manual_seed(5)
    got = torch.compile(function, fullgraph=True)(x)
    for g, e in zip(got, expected, strict=True):
        assert (g.dtype, g.device) == (e.dtype, e.device)
        torch.testing.assert_close(g.cpu(), e.cpu())


@pytest.mark.usefixtures("empty_cache")
def test_a_graph_is_part_of_the_program_around_it() -> None:
    """It forms one program with the ops before and after it, and the same program when it is captured again."""
    model, x = make().to("tpu"), torch.ones(4, 8).to("tpu")
    with torch.no_grad():
        expected = (model(x * 2) + 1).cpu()
        before = lazytpu.metrics()["compiles"]
        for _ in range(2):
            torch._dynamo.reset()
            got = (torch.compile(model)(x * 2) + 1).cpu()
            assert lazytpu.metrics()["compiles"] <= before + 1
            torch.testing.assert_close(got, expected)


def test_graphs_elsewhere_still_go_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as inductor

    seen = []

    def inner(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(graph)
        raise RuntimeError("reached inductor")

    monkeypatch.setattr(inductor, "compile_fx", inner)
    with pytest.raises(Exception, match="reached inductor"):
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
    assert seen
    assert torch.compile(lambda x: x.sin() + 1)(torch.zeros(3, device="tpu")).tolist() == [1.0] * 3
    assert len(seen) == 1


def test_inductors_own_function_and_the_registry_are_routed_too() -> None:
    from torch._dynamo.backends.registry import lookup_backend

    compiled = torch.compile(lambda x: x.sin() + 1, backend=lookup_backend("inductor"))
    assert compiled(torch.zeros(3, device="tpu")).tolist() == [1.0] * 3


def test_importing_lazytpu_imports_neither_dynamo_nor_libraries() -> None:
    names = ("torch._dynamo", "torch._inductor", "accelerate", "lightning", "transformers")
    code = f"import lazytpu, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Registering(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("doubled", x * 2, persistent=False)
        return x + self.doubled


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_hooks_on_modules_break_no_graph(device: str) -> None:
    x = torch.ones(3, device=device)
    assert torch.compile(Registering(), backend="eager", fullgraph=True)(x).tolist() == [3, 3, 3]


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_hooks_on_optimizers_break_no_graph(device: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, device=device))
    weight.grad = torch.ones(3, device=device)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch.compile(optimizer.step, backend="eager")()
    assert weight.tolist() == [0.5, 0.5, 0.5]
    assert not [reason for reason in counters["graph_break"] if "lazytpu" in reason]  # torch's own step has some
