"""The identity of kernels: their computation, and nothing else, in this process and in the cache on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from lazytpu.ir import bodies
from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering import emit
from lazytpu.lowering.errors import LoweringError
from lazytpu.pallas import custom_jax_kernel
from tests import zygote
from tests.ir.samples import module_of
from tests.kernels.pallas_kernels import softmax

SCRIPT = """
import json
import torch
import lazytpu
from lazytpu.pallas import custom_jax_kernel
import jax.numpy as jnp
STEP = {step}
TABLE = jnp.array([{table}])
def kernel(x):
    return x + STEP + TABLE
kernel = custom_jax_kernel(kernel)
x = torch.arange(3.0).to("tpu")
print(json.dumps([kernel(x).tolist(), lazytpu.metrics()["compiles"], lazytpu.metrics()["cache_hits"]]))
"""


def run(folder: Path, step: Any, table: Any) -> list[Any]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(step=step, table=table))
    environment = {**os.environ, "LAZYTPU_CACHE_DIR": str(folder / "cache")}
    done = zygote.run([str(script)], cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_another_process_finds_only_the_same_kernel(tmp_path: Path):
    assert run(tmp_path, 1, "1.0, 2, 3") == [[2, 4, 6], 1, 0]
    assert run(tmp_path, 1, "1.0, 2, 3") == [[2, 4, 6], 0, 1]
    assert run(tmp_path, 2, "1.0, 2, 3") == [[3, 5, 7], 1, 0]  # another body of the same name


def key_of(function: Any, *operands: torch.Tensor) -> str:
    kernel = custom_jax_kernel(function)
    kernel(*operands)
    (program,) = kernel._programs.values()
    return program.call(operands).key


def test_keys_depend_on_contents():
    x = torch.ones(4, device="tpu")

    def of(step: Any) -> Any:
        def same_name(x: jax.Array) -> jax.Array:
            return x + step

        return same_name

    keys = [key_of(of(step), x) for step in (1, 1, 2, jnp.ones(4), jnp.zeros(4))]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all(key.startswith("same_name_") for key in keys)
    assert key_of(of(1), x) != key_of(of(1), torch.ones(5, device="tpu"))


def text_of_softmax() -> str:
    key = key_of(softmax, torch.ones(8, 16, device="tpu"))
    return print_module(module_of(lambda b, x: b.jax_call(key, [x], [("f32", (8, 16))]), "f32[8,16]"))


def test_text_holds_the_bodies_of_its_kernels(tmp_path: Path):
    text = text_of_softmax()
    assert text.count("softmax_") == 2  # the call, and the body
    assert print_module(parse_module(text)) == text
    path = tmp_path / "module.mlir"
    path.write_text(text)
    program = "import sys; from lazytpu.inspection.opt import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "-p", "cse", "-t", "stablehlo", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)  # it has no Python function
    assert done.returncode == 0, done.stderr
    assert "func.func private @softmax_" in done.stdout


def test_text_without_the_body_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bodies, "_BODIES", {})
    monkeypatch.setattr(bodies, "_MAKERS", {})
    call = "%0 = lazytpu.jax_call f_0123456789abcdef %x : (tensor<2xf32>) -> tensor<2xf32>"
    text = f"func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{ {call} func.return %0 : tensor<2xf32> }}"
    with pytest.raises(LoweringError, match="there is no body of the kernel f_0123456789abcdef for 'cpu'"):
        emit(parse_module(text))


@pytest.mark.parametrize(
    ("value", "message"), [("beef", "hexadecimal digits after 0x"), ("0xbeef", "is damaged"), ("0xzz", "is damaged")]
)
def test_damaged_bodies_are_refused(value: str, message: str):
    with pytest.raises(ValueError, match=message):
        bodies.BodyResources().parse_resource("f_0123456789abcdef", value)
