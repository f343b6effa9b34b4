"""Imports and uses of lazytpu leave the process's state unchanged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from lazytpu.undisturbed import undisturbed, with_environment

SCRIPT = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import builtins, ctypes, faulthandler, gc, io, locale, logging, multiprocessing, random, resource, signal, socket, sys
import threading, warnings
import numpy as np
import torch
del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]

def floating():
    state = ctypes.create_string_buffer(64)
    ctypes.CDLL("libm.so.6").fegetenv(state)
    denormals = []
    thread = threading.Thread(target=lambda: denormals.append((torch.tensor(1e-310, dtype=torch.float64) / 2).item()))
    thread.start()
    thread.join()
    return state.raw[:2], state.raw[28:32], denormals

def process():
    root = logging.getLogger()
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": dict(os.environ), "folder": os.getcwd(), "umask": mask, "nice": os.nice(0),
        "affinity": os.sched_getaffinity(0), "limits": [resource.getrlimit(each) for each in range(16)],
        "warnings": (list(warnings.filters), warnings.showwarning), "locale": locale.setlocale(locale.LC_ALL),
        "logging": (root.level, list(root.handlers), root.manager.disable, logging.getLoggerClass()),
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()), "faulthandler": faulthandler.is_enabled(),
        "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
        "tracing": (sys.gettrace(), sys.getprofile()), "streams": (sys.stdin, sys.stdout, sys.stderr),
        "python": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), list(sys.argv)),
        "search": (list(sys.path), list(sys.path_hooks)), "builtins": dict(vars(builtins)),
        "finders": [each for each in sys.meta_path if type(each).__module__ != "lazytpu.frontend.libraries.on_import"],
        "collector": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), gc.get_debug()),
        "numpy": (np.geterr(), np.geterrcall(), np.get_printoptions()), "timeout": socket.getdefaulttimeout(),
        "draws": (random.getstate(), repr(np.random.get_state(legacy=False))), "floating": floating(),
        "start": multiprocessing.get_start_method(allow_none=True),
        "torch": (torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_num_threads(),
            torch.get_num_interop_threads(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(), str(torch.get_default_device())),
    }

np.random.seed(0), random.seed(0), torch.manual_seed(0)
before = process()

def check(stage):
    for name, value in process().items():
        if value != before[name]:
            print(stage, "changes", name, str(before[name])[:300], "->", str(value)[:300])

import lazytpu
check("the import")
x = torch.ones(3).to("tpu")
(x + 1).tolist()
check("the first op")
weight = torch.nn.Parameter(torch.eye(3).to("tpu"))
optimizer = torch.optim.Adam([weight])
for _ in range(2):
    (weight @ x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weight.tolist()
check("a step")
torch.linalg.svd(weight.detach() + 1)[1].tolist()
file = io.BytesIO()
torch.save(weight, file)
file.seek(0)
torch.load(file)
check("saving and loading")
from lazytpu.pallas import custom_jax_kernel
import jax.numpy as jnp
custom_jax_kernel(lambda x: jnp.sin(x))(x).tolist()
check("a kernel")
str(lazytpu.memory()), str(lazytpu.explain()), lazytpu.metrics()
check("a report")
import torch._dynamo, torch._inductor.compile_fx
before = process()
torch.compile(lambda x: x.sin() + 1)(x).tolist()
before["start"] = process()["start"]  # torch._inductor's
check("torch.compile")
print("done")
"""


def test_state_of_the_process_is_unchanged(tmp_path: Path) -> None:
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_import_of_kernels_draws_no_random_numbers() -> None:
    script = (
        "import numpy, random, torch; numpy.random.seed(0); random.seed(0)\n"
        "states = lambda: (repr(numpy.random.get_state(legacy=False)), random.getstate())\n"
        "before = states()\n"
        "from lazytpu.pallas import custom_jax_kernel\n"
        "custom_jax_kernel(lambda x: x)\n"
        "print(states() == before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_other_threads_draw_as_usual() -> None:
    np.random.seed(3)
    random.seed(3)
    expected = [np.random.rand(), random.random(), np.random.rand(), random.random()]
    np.random.seed(3)
    random.seed(3)
    drawn: list[float] = []

    def draw() -> None:
        drawn.extend((np.random.rand(), random.random()))

    with undisturbed():
        np.random.rand()
        random.shuffle([1, 2, 3])
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        with undisturbed():
            np.random.seed(9)
            random.seed(9)
        from random import getrandbits
    draw()
    assert drawn == expected
    random.seed(3)
    first = getrandbits(8)  # a name imported inside is the module's function again
    random.seed(3)
    assert first == random.getrandbits(8)


def test_environment_is_restored() -> None:
    before = dict(os.environ)
    with with_environment({"LAZYTPU_A": "1", "PATH": "no"}) as added:
        assert (os.environ["LAZYTPU_A"], os.environ["PATH"]) == ("1", before["PATH"])
        os.environ["LAZYTPU_B"] = "2"
    assert added == {"LAZYTPU_A": "1", "LAZYTPU_B": "2"}
    assert dict(os.environ) == before
