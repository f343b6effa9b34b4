"""XLA:CPU uses no instructions for half precision, on processors that have them."""

from __future__ import annotations

import os

import pytest

from lazytpu.runtime.xla import processor
from tests import zygote


@pytest.fixture
def half(monkeypatch):
    """A processor with half-precision arithmetic."""
    monkeypatch.setattr(processor, "facts", lambda: {"flags": "fma avx2 avx512f avx512_fp16"})


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        (None, "--xla_cpu_max_isa=AVX2"),
        ("", "--xla_cpu_max_isa=AVX2"),
        ("--xla_dump_to=/tmp/x", "--xla_dump_to=/tmp/x --xla_cpu_max_isa=AVX2"),
        ("--xla_cpu_max_isa=SSE4_2", "--xla_cpu_max_isa=SSE4_2"),
        ("flags.txt", "flags.txt"),
    ],
)
def test_flags_hold_the_cap_while_the_client_is_created(half, monkeypatch, given, inside):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if given is not None:
        monkeypatch.setenv("XLA_FLAGS", given)
    with processor.without_half_arithmetic():
        assert os.environ["XLA_FLAGS"] == inside
    assert os.environ.get("XLA_FLAGS") == given


@pytest.mark.parametrize("flags", ["fma avx2", "avx512f avx512_bf16 amx_bf16", ""])
def test_other_processors_keep_all_instructions(monkeypatch, flags):
    monkeypatch.setattr(processor, "facts", lambda: {"flags": flags})
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with processor.without_half_arithmetic():
        assert "XLA_FLAGS" not in os.environ


CAPPED = """
import os
import numpy as np
from lazytpu.runtime.xla import client, processor
from lazytpu.runtime.xla.mlir import ir

MOST = os.environ.get("MOST")
processor.facts = lambda: {"flags": "avx512_fp16" if MOST else ""}
processor.MAX_ISA = MOST
client.client()
with client.mlir_context():
    program = client.compile_module(ir.Module.parse('''
      func.func public @main(%x: tensor<64xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {
        %0 = stablehlo.multiply %x, %x : tensor<64xf32>
        %1 = stablehlo.add %0, %y : tensor<64xf32>
        return %1 : tensor<64xf32>
      }'''))
x, y = (client.to_device(np.full(64, value, np.float32)) for value in (1 + 2.0**-12, -1 - 2.0**-11))
[sums] = program.execute_sharded([x, y]).disassemble_into_single_device_arrays()
once = client.to_host(sums[0])[0]
print(float(once), client.topology(), b"AVX" in client.options_bytes(), "XLA_FLAGS" in os.environ)
"""


def test_cap_reaches_the_code_and_the_cache_key():
    """Tested by a cap that forbids fused multiply-adds of any precision, as this processor may have none of half
    precision."""

    def run(**environment):
        variables = {**os.environ, "XLA_FLAGS": "", "LAZYTPU_PLATFORM": "cpu", **environment}
        done = zygote.run(["-c", CAPPED], env=variables)
        assert done.returncode == 0, done.stderr
        rounded, *topology, in_key, after = done.stdout.split()
        return float(rounded), topology, in_key, after

    rounded, topology, in_key, _ = run(MOST="AVX")
    assert rounded == 0  # 2**-24 where the product is not rounded
    assert in_key == "True"
    if "fma" in processor.facts().get("flags", "").split():
        assert topology != run()[1]
