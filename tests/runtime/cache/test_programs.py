"""Programs from disk: the same key for the same program, the same results, and only programs of this environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.store import CacheWarning, store
from lazytpu.runtime.errors import CompileError, RunError
from lazytpu.runtime.xla import client, host_functions
from lazytpu.runtime.xla.jax_functions import lower_jax_function
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.program import Program

pytestmark = pytest.mark.usefixtures("empty_cache")

STEP = """
module @step {
  func.func public @main(%w: tensor<8x8xf32> {lazytpu.name = "weight", tf.aliasing_output = 0 : i32},
                         %x: tensor<8x8xf32> {lazytpu.name = "x"})
      -> (tensor<8x8xf32> {lazytpu.name = "w"}, tensor<f32>) {
    %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
       : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.tanh %0 : tensor<8x8xf32> loc("train.py":10:4)
    %2 = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [0, 1]
       : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    return %1, %3 : tensor<8x8xf32>, tensor<f32>
  }
}"""
QR = """func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0:2 = stablehlo.custom_call @lapack_sgeqrf_ffi(%x) {mhlo.backend_config = {}, api_version = 4 : i32,
    operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
    result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<0> : tensor<1xindex>],
    output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [0], operand_index = 0,
                              operand_tuple_indices = []>]} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>)
  return %0#0 : tensor<4x4xf32>
}"""


def parse(text: str) -> ir.Module:
    with client.mlir_context():
        return ir.Module.parse(text)


def key(text: str = STEP) -> str:
    return programs.program_key(parse(text))


def obtain(text: str = STEP, name: str = "step") -> programs.Obtained:
    module = parse(text)
    return programs.obtain(module, programs.program_key(module), name=name)


def arguments() -> list[Any]:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    return [client.to_device(values), client.to_device(values.T.copy())]


def run(program: Program, values: list[Any]) -> list[np.ndarray[Any, Any]]:
    return [client.to_host(buffer) for buffer in program.run(values)]


def entry_file(folder: Path) -> Path:
    (file,) = (folder / "entries").iterdir()
    return file


SAME = {
    "a source line": lambda text: text.replace("train.py", "/elsewhere/train.py").replace(":10:4", ":99:1"),
    "a parameter's name": lambda text: text.replace('"weight"', '"layers.0.weight"').replace('"w"', '"out"'),
    "no name at all": lambda text: re.sub(r'lazytpu.name = "\w+",?', "", text),
    "the program's name": lambda text: text.replace("@step", "@validate"),
    "names of values": lambda text: text.replace("%0", "%product").replace("%w", "%arg").replace("%1", "%a"),
}
OTHER = {
    "an op": lambda text: text.replace("tanh", "sine"),
    "a constant": lambda text: text.replace("dense<0.0>", "dense<-0.0>"),
    "a shape": lambda text: text.replace("8x8", "9x9"),
    "donation": lambda text: text.replace(", tf.aliasing_output = 0 : i32", ""),
    "the order of results": lambda text: text.replace("return %1, %3 : tensor<8x8xf32>, tensor<f32>",
                                                      "return %3, %1 : tensor<f32>, tensor<8x8xf32>")
    .replace('(tensor<8x8xf32> {lazytpu.name = "w"}, tensor<f32>) {', "(tensor<f32>, tensor<8x8xf32>) {")
    .replace("aliasing_output = 0", "aliasing_output = 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_debug_information_is_not_in_the_key(what: str):
    changed = SAME[what](STEP)
    assert changed != STEP
    assert key(changed) == key()


@pytest.mark.parametrize("what", OTHER)
def test_computation_is_in_the_key(what: str):
    assert key(OTHER[what](STEP)) != key()


def test_options_of_xla_are_in_the_key_except_dumps(monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setitem(programs.OPTIONS, "xla_dump_to", "/tmp/dumped")
    assert key() == before
    monkeypatch.setitem(programs.OPTIONS, "xla_cpu_enable_fast_math", True)
    assert key() != before


def test_environment_is_in_the_key(monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setattr(programs, "environment_digest", lambda: "0" * 64)
    assert key() != before


def test_module_keeps_its_names():
    module = parse(STEP)
    text = str(module)
    programs.program_key(module)
    assert str(module) == text


def test_loaded_program_equals_the_compiled_one():
    first = obtain()
    second = obtain(name="other")
    assert first.compiled and not second.compiled
    assert second.program is not first.program and second.program.name == "other"
    assert second.program.signature == first.program.signature
    assert second.program.memory == first.program.memory
    assert second.program.key == first.program.key == key()
    for expected, got in zip(run(first.program, arguments()), run(second.program, arguments()), strict=True):
        assert np.array_equal(expected, got) and expected.dtype == got.dtype


def test_loaded_program_donates():
    obtain()
    program = obtain().program
    inputs = arguments()
    place = client.address(inputs[0])
    result, _ = program.run(inputs)
    assert client.is_deleted(inputs[0]) and not client.is_deleted(inputs[1])
    assert client.address(result) == place
    assert program.memory.aliased == 256


def test_loaded_program_checks_its_arguments():
    obtain()
    program = obtain().program
    with pytest.raises(RunError, match=r"argument 1 must be float32\[8, 8\], and is float32\[4\]"):
        program.run([arguments()[0], client.to_device(np.zeros(4, np.float32))])


def test_loading_by_key_alone():
    compiled = obtain().program
    assert compiled.key is not None
    loaded = programs.load(compiled.key)
    assert loaded is not None and loaded.name == "step" and loaded.signature == compiled.signature
    assert programs.load("0" * 64) is None


def test_entry_describes_its_program(empty_cache: Path):
    obtain()
    (listed,) = store().entries()
    assert listed.about["name"] == "step" and listed.about["compile_ms"] > 0
    assert listed.about["made_for"]["platform"] == client.platform()
    assert b"train.py" not in entry_file(empty_cache).read_bytes().split(b"}", 1)[0]


def test_traffic_is_counted():
    hits, misses = programs.TRAFFIC.hits, programs.TRAFFIC.misses
    obtain(), obtain()
    assert (programs.TRAFFIC.hits - hits, programs.TRAFFIC.misses - misses) == (1, 1)


def test_entry_of_another_environment_is_not_run(monkeypatch: pytest.MonkeyPatch):
    """With any key: it may be copied from a machine with another processor."""
    with monkeypatch.context() as patch:
        patch.setattr(programs, "environment_digest", lambda: "0" * 64)
        obtain()
        entry = store().get("program", key())
    assert entry is not None
    store().put("program", key(), entry.payload, entry.about)
    with pytest.warns(CacheWarning, match=r"foreign: it was compiled for .*; here is .*'platform': "):
        again = obtain()
    assert again.compiled
    assert not obtain().compiled, "the new one took its place"


@pytest.mark.parametrize("payload", [b"", b"no program at all", bytes(10_000)])
def test_executables_that_xla_refuses_are_compiled_again(payload: bytes):
    """With a valid digest: only XLA can detect the damage."""
    obtain()
    entry = store().get("program", key())
    assert entry is not None
    store().put("program", key(), payload, entry.about)
    with pytest.warns(CacheWarning, match="damaged or foreign"):
        again = obtain()
    assert again.compiled and len(run(again.program, arguments())) == 2


def test_program_with_an_invalid_description_is_compiled():
    obtain()
    entry = store().get("program", key())
    assert entry is not None
    store().put("program", key(), entry.payload, {**entry.about, "signature": {"arguments": [["f33", [1]]]}})
    with pytest.warns(CacheWarning, match="damaged or foreign"):
        assert obtain().compiled


def test_damaged_file_is_compiled(empty_cache: Path):
    obtain()
    file = entry_file(empty_cache)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.warns(CacheWarning, match="damaged or foreign: it has"):
        assert obtain().compiled


def test_unserializable_program_is_not_stored(monkeypatch: pytest.MonkeyPatch, empty_cache: Path):
    monkeypatch.setattr(client, "serialize", lambda executable: None)
    assert obtain().compiled and obtain().compiled
    assert list((empty_cache / "entries").iterdir()) == []


def test_programs_that_call_python_are_not_stored(empty_cache: Path):
    """A callback is an address, or a number, of this process."""

    def calls_numpy(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sinc, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    bytecode, _ = lower_jax_function(calls_numpy, [(np.dtype(np.float32), (4,))])
    with client.mlir_context():
        module = ir.Module.parse(bytecode)
    assert host_functions.called_by(module) == ["xla_ffi_python_cpu_callback"]
    for _ in range(2):
        assert programs.obtain(module, programs.program_key(module)).compiled
    assert list((empty_cache / "entries").iterdir()) == []


def test_entries_with_functions_that_this_process_lacks_are_kept(monkeypatch: pytest.MonkeyPatch, empty_cache: Path):
    assert host_functions.called_by(parse(QR)) == ["lapack_sgeqrf_ffi"]
    assert host_functions.available(["lapack_sgeqrf_ffi"])
    obtain(QR)
    with monkeypatch.context() as patch:
        patch.setattr(host_functions, "available", lambda names: names != ["lapack_sgeqrf_ffi"])
        assert programs.load(key(QR)) is None
    assert entry_file(empty_cache).exists()
    matrix = np.arange(16, dtype=np.float32).reshape(4, 4)
    loaded = obtain(QR)
    (upper,) = run(loaded.program, [client.to_device(matrix)])
    assert not loaded.compiled
    np.testing.assert_allclose(np.triu(upper), np.linalg.qr(matrix, "r"), rtol=1e-3, atol=1e-4)


def test_failed_compilation_leaves_nothing(empty_cache: Path):
    bad = "func.func public @main(%x: tensor<f32>) -> tensor<f32> { %0 = stablehlo.custom_call @no_such(%x) : " \
        "(tensor<f32>) -> tensor<f32> return %0 : tensor<f32> }"  # fmt: skip
    for _ in range(2):
        with pytest.raises(CompileError, match="no_such"):
            obtain(bad)
    assert list((empty_cache / "entries").iterdir()) == list((empty_cache / "locks").iterdir()) == []


def test_programs_compile_without_a_disk(monkeypatch: pytest.MonkeyPatch):
    from lazytpu.options import options

    with options(cache_dir="off"):
        assert obtain().compiled and obtain().compiled
