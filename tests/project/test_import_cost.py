"""`import torch` makes "tpu" a device, and imports neither jax nor xDSL nor kernels; a device that another backend owns
is reported at first use only."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest

HEAVY = ("jax", "jaxlib", "xdsl", "networkx", "rich")
ROOMS = tuple(f"lazytpu.{room}" for room in ("aten", "distributed", "engine", "ir", "lowering", "passes", "runtime"))


def run(code: str, **environment: str) -> str:
    """Return the standard output of a fresh Python process."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


HERE = "import torch; assert str(torch.device('tpu')) == 'tpu' and torch.tpu.is_available(); "


@functools.cache
def modules(statement: str, autoload: str = "1") -> frozenset[str]:
    device = HERE if autoload == "1" else ""
    code = f"import json, sys; {statement}; {device}print(json.dumps(sorted(sys.modules)))"
    return frozenset(json.loads(run(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)))


@pytest.mark.parametrize("statement", ["import torch", "import lazytpu"])
def test_import_loads_no_large_library(statement: str):
    """Modules that torch itself loads without autoloading do not count. The device exists all the same."""
    loaded = modules(statement)
    alone = modules("import torch", autoload="0")
    assert "lazytpu" in loaded
    added = loaded - alone
    assert not [name for name in added if name.split(".")[0] in HEAVY or name.startswith(ROOMS)]


def test_entry_point_takes_little_time():
    """At most 0.2 s of CPU time, in the best of three runs; torch needs the other time of `import torch`."""
    code = """
import os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
start = time.process_time()
from lazytpu.wiring import register
register()
print(time.process_time() - start)
"""
    assert any(float(run(code)) <= 0.2 for _ in range(3))


TAKEN = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
torch.utils.rename_privateuse1_backend("other")
from lazytpu.wiring import register
register()                                        # what `import torch` runs: silent
print("imported")
try:
    import lazytpu
    lazytpu.mark_step()
except RuntimeError as error:
    print(error)
"""


def test_device_of_another_backend_is_reported_at_first_use():
    first, message = run(TAKEN).split("\n", 1)
    assert first == "imported"
    assert "already taken by 'other'" in message


def test_steps_load_no_dynamo_and_work_with_it_later():
    """Functions that it must not trace are still excluded, and steps of optimizers break its graphs."""
    code = """
import sys, torch
from torch.optim import optimizer as steps
torch.tpu.init()
cpu = torch.ones(2, requires_grad=True)
torch.optim.SGD([cpu])  # wraps the step of its class
def made(name, trained, **options):
    weight = torch.ones(2, device="tpu", requires_grad=trained)
    weight.grad = 2 * weight.detach()
    return weight, getattr(torch.optim, name)([weight], lr=0.1, **options)
before = made("SGD", True)
differentiable = made("SGD", False, differentiable=True)
differentiable[0].grad.requires_grad_()
for weight, optimizer in (before, made("Adam", True), differentiable):
    optimizer.step()
    assert torch.is_grad_enabled() and weight.grad_fn is None or optimizer is differentiable[1]
assert differentiable[0].requires_grad
with torch.no_grad():
    made("Adam", True)[1].step()
    assert not torch.is_grad_enabled()
x = torch.ones(2, 3, device="tpu", requires_grad=True)
torch.nn.functional.linear(x, x).exp().sum().backward()
optimizer = torch.optim.SGD([x], lr=0.1)
optimizer.zero_grad()
print(x.sum().item(), before[0].tolist(), "torch._dynamo" in sys.modules)
import torch._dynamo
from torch._refs import add
told = add(torch.ones(1), 1).item(), hasattr(add.__wrapped__.__wrapped__, "__dynamo_disable")
print(*told, vars(torch._compile).get("getattr"))
(code,) = [c for c in steps._use_grad_for_differentiable.__code__.co_consts if hasattr(c, "co_code")]
print(torch.optim.RMSprop.step.__code__ is code, torch.optim.SGD.step.__wrapped__.__code__ is code)
before[1].step()
print(before[0].tolist())
"""
    assert run(code).splitlines() == [
        "6.0 [0.800000011920929, 0.800000011920929] False",
        "2.0 True None",
        "True True",
        "[0.6000000238418579, 0.6000000238418579]",
    ]


def test_activation_runs_no_collections():
    """A later collection frees the garbage, and objects that the script froze stay frozen."""
    code = """
import gc, sys, weakref
import torch
class Node:
    pass
node = Node()
node.itself, gone = node, weakref.ref(node)
if "freeze" in sys.argv:
    gc.freeze()
frozen = gc.get_freeze_count()
collected = []
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
gc.collect(0)
del node, collected[:]
torch.tpu.init()
print(collected.count(2), gc.isenabled(), bool(gc.get_freeze_count()) == bool(frozen), gone() is None)
gc.unfreeze()
gc.collect()
print(gone() is None)
"""
    assert run(code).split() == ["0", "True", "True", "False", "True"]
    assert run(f"import sys; sys.argv.append('freeze'){code}").split() == ["0", "True", "True", "False", "True"]


def test_front_ends_are_not_imported_by_the_first_op():
    """Not even tried: they may be installed or not."""
    code = """
import sys
class Finder:
    def find_spec(name, path=None, target=None):
        tried.add(name)
tried = set()
sys.meta_path.insert(0, Finder)
import lazytpu, torch
x = torch.ones(3, device="tpu", requires_grad=True)
(x * 2).sum().backward()
assert x.grad.tolist() == [2, 2, 2] and "jax" in tried
roots = {name.partition(".")[0] for name in tried}
print(roots & {"helion", "torch_tpu", "vllm", "lazytpu_vllm", "torchtitan"}, "lazytpu.helion" in tried)
"""
    assert run(code).strip() == "set() False"
