"""Steps run in clusters: same values as one program, each distinct cluster compiled once, same checks and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, UnitAttr
from xdsl.dialects.func import FuncOp

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling import clusters
from lazytpu.engine.compiling.compiler import Compiler
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.frontend.tensors import recorder
from lazytpu.ir.text import parse_module
from lazytpu.lowering import emit
from lazytpu.runtime.errors import CompileError, RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.chain import Chain
from lazytpu.runtime.xla.program import Program
from lazytpu.trace.trie import State
from tests.engine.conftest import Gate
from tests.passes.programs import inputs, programs
from tests.passes.test_semantics import assert_same_bits

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)
WIDTH, ROWS = 8, 4


@pytest.fixture(autouse=True)
def small_steps_too(monkeypatch: pytest.MonkeyPatch, fresh_traces: None) -> None:
    monkeypatch.setattr(clusters, "LEAST", 60)
    monkeypatch.setattr(clusters, "SPARED", 1)


def forget_traces() -> None:
    """Begin a new trie: earlier traces and their programs are not used again."""
    mine = recorder()
    lazytpu.mark_step()
    mine.root = mine.state = State(None, None, None, 0, 0, 0)
    wiring.start().compiler.by_content.clear()


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[Chain]:
    """The chains that the test compiles, in order."""
    recorded: list[Chain] = []
    real = Compiler.parts

    def parts(self: Compiler, prepared: Any) -> Compiled | None:
        compiled = real(self, prepared)
        if compiled is not None:
            assert isinstance(compiled.program, Chain)
            recorded.append(compiled.program)
        return compiled

    monkeypatch.setattr(Compiler, "parts", parts)
    monkeypatch.setattr(wiring.start().background, "parts", lambda prepared: parts(wiring.start().compiler, prepared))
    return recorded


class Model(nn.Module):
    """An embedding, equal blocks, each with dropout, and a head."""

    def __init__(self, depth: int):
        super().__init__()
        self.table = nn.Embedding(7, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + nn.functional.dropout(block(x), 0.25)
        return self.head(x)


class Training:
    """A model, its optimizer and its data; `step` returns the loss without reading it."""

    def __init__(self, depth: int = 5):
        torch.manual_seed(5)
        self.model = Model(depth).to("tpu")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.tokens = torch.randint(0, 7, (ROWS,)).to("tpu")
        lazytpu.sync()

    def step(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(self.tokens), self.tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        lazytpu.mark_step()
        return loss.detach()

    def run(self, steps: int) -> list[torch.Tensor]:
        """Train for some steps and return the losses, then the parameters."""
        losses = [self.step() for _ in range(steps)]
        return [t.detach().cpu() for t in (*losses, *self.model.parameters())]


def assert_equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-7)


def test_clustered_steps_compute_the_values_of_whole_steps(chains: list[Chain]) -> None:
    """Without a disk cache, since an existing whole program is used whatever `clusters` is set to."""
    with lazytpu.options(background_compile=0, cache_dir=None):
        expected = Training().run(4)
        assert chains == []
        forget_traces()
        with lazytpu.options(clusters="only"):
            clustered = Training().run(4)
    assert_equal(clustered, expected)
    (chain,) = chains
    assert len(chain.plan.calls) > len(chain.programs)
    assert len(chain.signature.donated) == 5 * 2 + 3, "every parameter is overwritten"


def test_number_of_programs_is_independent_of_the_depth(chains: list[Chain]) -> None:
    with lazytpu.options(background_compile=0, clusters="only"):
        for depth in (8, 12):
            Training(depth).run(1)
    first, second = chains
    assert len(first.programs) == len(second.programs)
    assert len(first.plan.calls) < len(second.plan.calls)


def test_clusters_are_loaded_from_disk(chains: list[Chain]) -> None:
    in_memory = wiring.start().compiler.programs
    in_memory.clear()  # programs of earlier tests are not in this test's disk cache
    with lazytpu.options(background_compile=0, clusters="only"):
        expected = Training().run(2)
        in_memory.clear()
        forget_traces()
        before = lazytpu.metrics()
        assert_equal(Training().run(2), expected)
    now = lazytpu.metrics()
    assert now["compiles"] == before["compiles"]
    assert now["cache_hits"] - before["cache_hits"] >= len(chains[-1].programs)


def test_clusters_run_until_the_whole_program_is_compiled(gate: Gate, chains: list[Chain]) -> None:
    with lazytpu.options(clusters="meanwhile", background_compile=100):
        before = lazytpu.metrics()
        training = Training()
        first = [training.step() for _ in range(3)]
        lazytpu.sync()
        now = lazytpu.metrics()
        assert now["clustered"] - before["clustered"] == 3
        assert now["stepwise"] == before["stepwise"]
        gate.open()
        later = training.run(2)
        assert lazytpu.metrics()["clustered"] == now["clustered"]
    forget_traces()
    with lazytpu.options(background_compile=0):
        expected = Training().run(5)
    assert_equal([loss.cpu() for loss in first] + later, expected)


def test_small_steps_are_not_clustered(chains: list[Chain]) -> None:
    with lazytpu.options(background_compile=0, clusters="only"):
        x = torch.rand(5, 61).to("tpu")
        torch.testing.assert_close((x.exp() + 1).cpu(), x.cpu().exp() + 1)
    assert chains == []


@pytest.mark.parametrize("embedded", [False, True], ids=["one constant status", "one part"])
def test_steps_without_repetition_are_not_clustered(
    embedded: bool, chains: list[Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "LEAST", 10)
    monkeypatch.setattr(clusters, "SPARED", 2)
    x, places = torch.rand(5, 67), torch.tensor([1, 3])

    def chain_of(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = nn.functional.embedding(places, x) if embedded else x
        for function in (torch.sin, torch.tanh, torch.square, torch.cos, torch.sigmoid, torch.abs, torch.neg):
            x = function(x) + 0.5
        return x

    with lazytpu.options(background_compile=0, clusters="only"):
        torch.testing.assert_close(chain_of(x.to("tpu"), places.to("tpu")).cpu(), chain_of(x, places))
    assert chains == []


@given(text=programs(), seed=st.integers(0, 9))
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=SLOW)
def test_random_programs_are_equal_in_clusters(text: str, seed: int) -> None:
    """The last result takes the place of the status, and must be the same, too."""
    arrays = inputs(seed)
    program = parse_module(text)
    lowered = emit(program)
    (main,) = program.ops
    assert isinstance(main, FuncOp)
    main.arg_attrs = ArrayAttr([DictionaryAttr({"lazytpu.donate": UnitAttr()})] * len(main.args))
    expected = Program.compile(lowered).run([client.to_device(array) for array in arrays])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clusters, "LEAST", 0)
        patched.setattr(clusters, "SPARED", 0)
        patched.setattr(clusters, "PASSES", "cluster-fusion{min-ops=1 max-ops=3},mark-donation")
        clustered = clusters.clustered(program, lowered, verify=True)
    if clustered is None:
        return
    chain = clustered.chain(lambda module, name: Program.compile(module, name=name), "step")
    operands = [client.to_device(array) for array in arrays]
    results = chain.run(operands)
    for actual, wanted in zip(results, expected, strict=True):
        assert_same_bits(client.to_host(actual), client.to_host(wanted))
    taken = [i for i, array in enumerate(operands) if client.is_deleted(array)]
    assert taken == list(chain.signature.donated)


def test_index_out_of_range_is_reported_with_its_line() -> None:
    with lazytpu.options(background_compile=0, clusters="only"):
        training = Training()
        training.step()
        training.tokens = torch.full((ROWS,), 7).to("tpu")
        training.step()
        with pytest.raises(IndexError, match=r"aten\.\w+\.default at .*test_clusters\.py"):
            lazytpu.sync()


def test_status_depends_on_every_call(chains: list[Chain]) -> None:
    """The status depends on every call, so parameter updates have finished or failed once it is available."""
    with lazytpu.options(background_compile=0, clusters="only"):
        Training().run(2)
    plan = chains[-1].plan
    status = plan.results[-1]
    count = len(plan.signature.arguments) + len(plan.constants)
    makers: dict[int, int] = {}
    for number, call in enumerate(plan.calls):
        count_of_results = len(chains[-1].programs[call.program].signature.results)
        makers.update((count + i, number) for i in range(count_of_results))
        count += count_of_results
    reached, pending = {makers[status]}, [makers[status]]
    while pending:
        for value in plan.calls[pending.pop()].inputs:
            if value in makers and makers[value] not in reached:
                reached.add(makers[value])
                pending.append(makers[value])
    assert reached == set(range(len(plan.calls)))


def test_run_error_names_its_cluster_and_keeps_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with lazytpu.options(background_compile=0, clusters="only"):
        training = Training()
        training.step()
        kept = training.tokens + 1
        lazytpu.sync()
        real, count = Program.run, iter(range(1000))

        def run(self: Program, arrays: Any) -> Any:
            if next(count) == 5:
                raise RunError(self.name, "INTERNAL: the device is on fire")
            return real(self, arrays)

        monkeypatch.setattr(Program, "run", run)
        with pytest.raises(RunError, match=r"part 6 of \d+ \(forward\.cluster_\d+\): INTERNAL: the device is on fire"):
            training.step()
        monkeypatch.undo()
        assert kept.tolist() == (training.tokens.cpu() + 1).tolist()


def test_compile_error_names_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.runtime.cache import programs

    wiring.start().compiler.programs.clear()
    real = programs.obtain

    def obtain(module: Any, key: str, *, name: str, **rest: Any) -> Any:
        if name.endswith("cluster_2"):
            raise CompileError(name, "INTERNAL: no luck")
        return real(module, key, name=name, **rest)

    with lazytpu.options(background_compile=0, clusters="only"):
        training = Training()
        monkeypatch.setattr(programs, "obtain", obtain)
        before = training.model.head.weight.detach().cpu()
        with pytest.raises(CompileError, match=r"could not compile forward\.cluster_2: INTERNAL: no luck"):
            training.step()
        monkeypatch.undo()
        torch.testing.assert_close(training.model.head.weight.detach().cpu(), before, rtol=0, atol=0)
