"""A pass that raises is left out: the step runs the program of the remaining passes."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

import lazytpu
from lazytpu.engine.compiling import clusters, pass_errors
from lazytpu.engine.compiling.pass_errors import PASS_ERRORS, PassWarning
from lazytpu.ir.base import TensorOp
from lazytpu.options import options
from lazytpu.passes import registered
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import Explaining
from lazytpu.passes.registry import BUILT_IN
from tests import zygote

pytestmark = pytest.mark.usefixtures("fresh_traces", "empty_cache")


@pytest.fixture(autouse=True)
def not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_errors, "WARNED", {})


Apply = Callable[[ModulePass, Context, ModuleOp], None]


def raising(itself: ModulePass, context: Context, module: ModuleOp) -> None:
    """Raise with the module half rewritten."""
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    end = main.body.block.last_op
    assert end is not None
    end.operands = tuple(reversed(end.operands))
    raise KeyError("in the pass")


def invalidating(itself: ModulePass, context: Context, module: ModuleOp) -> None:
    """Leave an op with a result of a wrong type."""
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    for op in main.body.block.ops:
        if isinstance(op, TensorOp) and op.operands:
            op.operands = tuple(op.operands)[:-1]
            return


def disordering(itself: ModulePass, context: Context, module: ModuleOp) -> None:
    """Move an op behind its users."""
    block = next(op for op in module.ops if isinstance(op, FuncOp)).body.block
    end = block.last_op
    op = next(op for op in block.ops if op.results and op.results[0].uses)
    assert end is not None
    op.detach()
    block.insert_op_before(op, end)


def broken(name: str, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUILT_IN[name].load(), "apply", apply)


def train(device: str) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 6).to(device), torch.tensor([0, 2, 1, 1]).to(device)
    losses: list[torch.Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def trained_without(name: str) -> None:
    """Train on the device and check the losses, the one warning that names the pass, its count and its explanation."""
    before, explained = lazytpu.metrics(), len(lazytpu.explain())
    with pytest.warns(PassWarning) as caught:
        losses = train("tpu")
    torch.testing.assert_close(losses, train("cpu"))
    (warning,) = caught
    assert f"without the pass {name!r}" in str(warning.message) and "Please report" in str(warning.message)
    after = lazytpu.metrics()
    assert after["pass_errors"] - before["pass_errors"] == after["misses"] - before["misses"] > 0
    programs = list(lazytpu.explain())[explained:]
    assert programs and all(f"without the pass {name!r}: " in str(program) for program in programs)
    assert name not in [record.name for record in lazytpu.graphs()[-1].passes]


@pytest.mark.unexpected
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("apply", [raising, invalidating, disordering])
def test_training_step_runs_without_a_failing_pass(apply: Apply, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("cse", apply, monkeypatch)
    with options(verify=verify):
        trained_without("cse")
    assert ("KeyError: 'in the pass'" in PASS_ERRORS.tracebacks[-1]) == (apply is raising)
    lazytpu.reset_metrics()
    assert lazytpu.metrics()["pass_errors"] == 0


@pytest.mark.unexpected
@pytest.mark.parametrize("name", ["dce", "constant-folding", "canonicalize", "roll-loops", "mark-donation"])
def test_each_pass_can_be_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(name, raising, monkeypatch)
    trained_without(name)


@pytest.mark.unexpected
@pytest.mark.parametrize("mode", ["strict", "lazy", "debug"])
def test_every_mode_leaves_out_a_failing_pass(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("cse", invalidating, monkeypatch)
    x = torch.randn(4, 3)
    with pytest.warns(PassWarning), lazytpu.mode(mode):
        got = (x.to("tpu") * 2).tanh().sum(0).cpu()
    torch.testing.assert_close(got, (x * 2).tanh().sum(0))


@pytest.mark.unexpected
def test_pass_error_keeps_no_module_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[weakref.ref[ModuleOp]] = []

    def raises(itself: ModulePass, context: Context, module: ModuleOp) -> None:
        modules.append(weakref.ref(module))
        raise KeyError("in the pass")

    broken("cse", raises, monkeypatch)
    with pytest.warns(PassWarning):
        (torch.randn(3, 4).to("tpu").exp() * 2).sum(0).cpu()
    gc.collect()
    assert modules and not any(module() for module in modules)


class FailingPass(ModulePass):
    """A pass of another package that raises."""

    name = "mine"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise IndexError("in mine")


@pytest.mark.unexpected
def test_registered_pass_raises_only_if_required() -> None:
    x = torch.randn(3, 4).to("tpu")
    lazytpu.sync()
    with registered(FailingPass, phase="final"), pytest.warns(PassWarning, match=r"unregister\('mine'\)"):
        assert (x + 1).cpu().shape == (3, 4)
    with registered(FailingPass, phase="final", required=True), pytest.raises(PassError, match="in mine"):
        (x - 1).cpu()


@pytest.mark.unexpected
def test_several_failing_passes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, apply in (("dce", raising), ("cse", invalidating), ("canonicalize", disordering)):
        broken(name, apply, monkeypatch)
    with pytest.warns(PassWarning) as caught:
        losses = train("tpu")
    torch.testing.assert_close(losses, train("cpu"))
    assert len(caught) == 3


@pytest.mark.unexpected
def test_pass_whose_notes_raise_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "roll-loops"
    assert isinstance(BUILT_IN[name].load()(), Explaining)

    def raises(*given: Any) -> list[str]:
        raise AttributeError("of None")

    monkeypatch.setattr(BUILT_IN[name].load(), "notes", raises)
    trained_without(name)


@pytest.mark.unexpected
def test_step_succeeds_when_the_warning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken("cse", raising, monkeypatch)
    x, before = torch.randn(3, 4), lazytpu.metrics()["pass_errors"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = (x.to("tpu").exp() * 2).sum(0).cpu()
    torch.testing.assert_close(got, (x.exp() * 2).sum(0))
    assert lazytpu.metrics()["pass_errors"] == before + 1


@pytest.mark.unexpected
def test_program_for_many_sizes_leaves_out_a_failing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    broken("cse", raising, monkeypatch)
    before = len(lazytpu.explain())
    inputs = [torch.randn(n, 6) for n in (9, 11, 16, 10)]
    with options(buckets=(16,)), pytest.warns(PassWarning):
        got = [(x.to("tpu").exp() * 2).sum(0).cpu() for x in inputs]
    torch.testing.assert_close(got, [(x.exp() * 2).sum(0) for x in inputs])
    explanations = [str(program) for program in list(lazytpu.explain())[before:]]
    assert any("one program for sizes" in text and "without the pass 'cse'" in text for text in explanations)


@pytest.mark.unexpected
def test_step_runs_whole_when_clustering_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken("cluster-fusion", raising, monkeypatch)
    monkeypatch.setattr(clusters, "LEAST", 1)
    x = torch.randn(3, 4)
    with options(clusters="only"), pytest.warns(PassWarning, match="cluster-fusion"):
        got = (x.to("tpu").exp() * 2).sum(0).cpu()
    torch.testing.assert_close(got, (x.exp() * 2).sum(0))


@pytest.mark.parametrize("apply", [raising, invalidating])
def test_required_pass_raises(apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="tpu")
    lazytpu.sync()
    with monkeypatch.context() as patch:
        broken("keep-compared", apply, patch)
        y = x.exp() + 1
        with options(verify=True), pytest.raises(PassError, match="pass 'keep-compared'"):
            y.cpu()
    torch.testing.assert_close((x.exp() + 1).cpu(), torch.ones(3).exp() + 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_and_memory_errors_of_a_pass_are_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*given: Any) -> None:
        raise error

    x = torch.ones(3, device="tpu")
    lazytpu.sync()
    with monkeypatch.context() as patch:
        broken("cse", raises, patch)
        y = x.exp() + 1
        with pytest.raises(error):
            y.cpu()
    torch.testing.assert_close((x.exp() + 1).cpu(), torch.ones(3).exp() + 1)


SCRIPT = """
import json, sys, warnings
import torch, lazytpu
from lazytpu.passes.cse import CsePass

def raises(*given):
    raise KeyError("in the pass")

warnings.simplefilter("ignore")
if sys.argv[1] == "broken":
    CsePass.apply = raises
x = torch.ones(3, 4, device="tpu")
total = float((x.exp() * x.exp()).log().sum())
metrics = lazytpu.metrics()
passes = [[record.name for record in graph.passes] for graph in lazytpu.graphs()]
print(json.dumps({"total": total, "passes": passes, "metrics": metrics}))
"""


def test_the_next_process_compiles_with_all_passes(tmp_path: Path) -> None:
    def run(how: str) -> dict[str, Any]:
        done = zygote.run([str(path), how])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    first, second, third = run("broken"), run("whole"), run("broken")
    assert first["total"] == second["total"] == third["total"] == pytest.approx(24)
    assert first["metrics"]["pass_errors"] == first["metrics"]["misses"] > 0
    assert all("cse" not in passes for passes in first["passes"]) and all("cse" in p for p in second["passes"])
    assert second["metrics"]["pass_errors"] == 0 == third["metrics"]["pass_errors"]  # loaded by the digest of its trace
