"""A training step and a decode step of a GPT of one layer, recorded at a few sizes, as one program for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

import lazytpu
from lazytpu.aten.importer import import_trace
from lazytpu.engine.compiling import translate
from lazytpu.engine.sizes.skeletons import Integers, trace_apart, trace_together
from lazytpu.ir.symbolic import Derivation
from lazytpu.ir.text import parse_module, print_module
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of
from lazytpu.lowering import emit
from lazytpu.passes.padding.annotations import annotate, read
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from lazytpu.runtime.tpu import topologies
from lazytpu.runtime.tpu.topology import smallest
from lazytpu.runtime.tpu.tpu_compiler import ALONE
from lazytpu.trace.trie import Record
from tests.fitted import fit
from tests.passes.padding.sized import compiled, padded, true_of

BATCH, WORDS, WIDTH, HEADS, POSITIONS = 2, 11, 8, 2, 12
BOUND = {"n": (1, 8)}
SAMPLES = (5, 6, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache=None):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(cache, (k, v), strict=True))
            cache[:] = [k, v]
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.block, self.norm, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, cache=None, positions=None):
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.block(self.words(tokens) + self.positions(positions), cache)))


class Captured(RuntimeError):
    """The trace was imported; it is not compiled."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], tuple[list[Record], Sequence[int]]]:
    """A function that gives the records of a function, and the live slots."""
    traces: list[tuple[list[Record], Sequence[int]]] = []

    def spy(records, live, *args, **kwargs):
        traces.append((records, live))
        raise Captured

    def record(step: Callable[[], object]) -> tuple[list[Record], Sequence[int]]:
        lazytpu.sync()
        with monkeypatch.context() as patch, lazytpu.mode("lazy"):
            patch.setattr(translate, "import_trace", spy)
            kept = step()
            with pytest.raises(Captured):
                lazytpu.mark_step()
            del kept
        return traces.pop()

    return record


def unified(traces: Sequence[tuple[list[Record], Sequence[int]]]) -> ModuleOp:
    """Return the module at the bound, annotated with size expressions fitted to these traces."""
    integers = [Integers([], []) for _ in traces]
    for (records, _), into in zip(traces, integers, strict=True):
        trace_apart(records, into)
    varying = fit([np.array(into.values) for into in integers], np.array(integers[0].kinds))
    assert varying is not None
    with Derivation(BOUND) as derivation:
        records = trace_together(traces[0][0], map(derivation.size, varying.forms))
        module = import_trace(records, traces[0][1], ()).module
        reading = read(module)
    annotate(module, reading, BOUND)
    return parse_module(print_module(module))


def train(length: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = Gpt().to("tpu")
    tokens = torch.randint(0, WORDS, (BATCH, length + 1)).to("tpu")
    lazytpu.sync()

    def step() -> object:
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
        return model, loss

    return step


def decode(length: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = Gpt().to("tpu")
    cache = [torch.randn(BATCH, HEADS, length, WIDTH // HEADS).to("tpu") for _ in "kv"]
    tokens, positions = torch.randint(0, WORDS, (BATCH, 1)).to("tpu"), torch.tensor([length]).to("tpu")
    lazytpu.sync()

    def step() -> object:
        with torch.no_grad():
            chosen = model(tokens, cache, positions)[:, -1].argmax(-1)
        return chosen, cache

    return step


def arguments_of(module: ModuleOp) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    block = next(op for op in module.ops if isinstance(op, FuncOp)).body.block
    arrays: list[np.ndarray] = []
    for argument in block.args:
        dtype, shape = numpy_dtype(dtype_of(argument)), shape_of(argument)
        floats = dtype.kind == "f"
        arrays.append((rng.standard_normal(shape) * 0.3).astype(dtype) if floats else rng.integers(0, 8, shape, dtype))
    return arrays


def run(module: ModuleOp, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    run_pipeline(module, passes="cpu", verify=True)
    return list(compiled(module)(arrays))


@pytest.mark.parametrize("step", [pytest.param(train, marks=pytest.mark.long), decode])
def test_one_program_equals_the_exact_program_at_all_sizes(step, recorded) -> None:
    traces = {n: recorded(step(n)) for n in (5, 6, 8, 2)}
    modules = {n: import_trace(*trace, ()).module for n, trace in traces.items()}
    sized_module = unified([traces[n] for n in SAMPLES])
    sized = pad_sizes(sized_module)
    assert sized is not None
    assert sized.masks > 0
    run_pipeline(sized_module, passes="cpu", verify=True)
    program = compiled(sized_module)
    rng = np.random.default_rng(1)
    for n in (2, 5, 8):
        arrays = arguments_of(modules[n])
        want = run(modules[n], arrays)
        full = [padded(array, dims, rng) for array, dims in zip(arrays, sized.arguments, strict=True)]
        got = program([*full, np.array([n], np.int32)])
        for i, (actual, expected, dims) in enumerate(zip(got, want, sized.results, strict=True)):
            actual = true_of(actual, dims, {"n": n})
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6, err_msg=f"result {i} at {n}")


@pytest.mark.long
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize("step", [train, decode])
def test_libtpu_compiles_the_padded_program(step, chip: str, recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    module = unified([recorded(step(n)) for n in SAMPLES])
    pad_sizes(module)
    run_pipeline(module, passes=for_target(Target.parse(chip)), verify=True)
    topologies.check_compiles(emit(module, platform="tpu"), smallest(chip), name="padded")
