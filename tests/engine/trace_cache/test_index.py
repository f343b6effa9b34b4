"""The index of traces: an entry has all that a cut needs of a program, and a malformed entry is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.aten import dtypes, registry
from lazytpu.engine.compiling.translate import Translated, translate
from lazytpu.engine.programs import environment
from lazytpu.engine.trace_cache import index, lookup
from lazytpu.engine.trace_cache.index import Malformed
from lazytpu.frontend.tensors import recorder
from lazytpu.options import options
from lazytpu.passes import registered
from lazytpu.passes.cse import CsePass
from lazytpu.passes.target import Target
from lazytpu.runtime.cache import translation
from lazytpu.runtime.cache.store import CacheWarning, store
from lazytpu.runtime.xla.signature import signature
from lazytpu.trace.trie import CutPlan, State

PROGRAM = "ab" * 32


@pytest.fixture
def fresh_trie() -> Iterator[Callable[[], None]]:
    """A function that drops all traces and programs, as if the process had just started."""
    mine = recorder()
    before = mine.root

    def forget(root: State | None = None) -> None:
        mine.cut()
        wiring.start().compiler.programs.clear()
        wiring.start().compiler.by_content.clear()
        mine.root = mine.state = State(None, None, None, 0, 0, 0) if root is None else root

    yield forget
    forget(before)


def translated(state: State, dead: tuple[int, ...] = ()) -> tuple[Translated, tuple[int, ...]]:
    live = CutPlan.of(state).results
    return translate(state.records(), live, dead, {}, name="test", bounds_check=True, target=Target("cpu")), live


def recorded(function: Callable[[], Any]) -> State:
    """Sync, call `function`, and return the state of the trace that it recorded."""
    lazytpu.sync()
    kept = function()
    state = recorder().state
    del kept
    return state


def _views() -> Any:
    base = torch.arange(24.0).reshape(2, 3, 4).to("tpu")
    base[:, 1] += base[:, 2] * 3
    return base.transpose(0, 2).contiguous(), base.permute(2, 0, 1) + 1


def _numbers() -> Any:
    x = torch.ones(3).to("tpu")
    return x.half() * 0.1, x.to(torch.bfloat16) + 2.5, x.long() + 7, x.double() / 3, torch.dropout(x, 0.5, True)


def _dtypes() -> Any:
    x = torch.ones(2, 2).to("tpu")
    y = torch.zeros(5, dtype=torch.uint8, device="tpu")
    return x > 0, x * 1j, y + 1, torch.empty(3, device="tpu"), x.to(memory_format=torch.preserve_format)


def _indices() -> Any:
    table, rows = torch.ones(4, 3).to("tpu"), torch.tensor([1, 3]).to("tpu")
    return table[rows] * 2, torch.nn.functional.embedding(rows, table)


@pytest.mark.parametrize("function", [_views, _numbers, _dtypes, _indices])
def test_entry_round_trips_program_and_binding(function: Callable[[], Any]) -> None:
    state = recorded(function)
    dead = tuple(range(state.inputs))
    result, live = translated(state, dead)
    program, binding = index.decode(index.encode(PROGRAM, result.binding), state, live, dead)
    assert program == PROGRAM and binding.packer.entries == result.binding.packer.entries
    assert replace(binding, packer=result.binding.packer) == result.binding
    with result.module.context:
        assert binding.signature(state.records()) == signature(result.module)


@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_signature_has_the_dtypes_of_the_program(dtype: torch.dtype) -> None:
    """8-bit floats are bits in a program."""
    x = torch.zeros(2, 3, dtype=torch.uint8).to(dtype)
    state = recorded(lambda: torch.cat([x.to("tpu"), x.to("tpu")]))
    result, live = translated(state)
    with result.module.context:
        assert result.binding.signature(state.records()) == signature(result.module)
    assert result.binding.inputs and live


MALFORMED: list[tuple[str, Any]] = [
    ("program", "x" * 64),
    ("program", "ab"),
    ("program", None),
    ("entries", {"f16": [[0, "real", "f16"]]}),
    ("entries", {"f32": [[99, "real", "f32"]]}),
    ("entries", {"f32": [[True, "real", "f32"]]}),
    ("entries", {"f32": [[0, "reel", "f32"]]}),
    ("entries", {"f32": [[0, "real", "f64"]]}),
    ("entries", {"f32": []}),
    ("entries", []),
    ("packs", [1]),
    ("packs", [0, 0]),
    ("inputs", [0, 1, 2, 3]),
    ("inputs", [1, 0]),
    ("inputs", [0.0]),
    ("inputs", "01"),
    ("donated", [0]),
    ("donated", [1, 1]),
    ("live", []),
    ("checks", [[99, "message", "IndexError"]]),
    ("checks", [[0, "message", "SystemExit"]]),
    ("checks", [[0, 1, "IndexError"]]),
    ("checks", [[0, "message"]]),
    ("checks", None),
    ("extra", 1),
]


@pytest.mark.parametrize(("field", "value"), MALFORMED)
def test_field_inconsistent_with_the_trace_is_refused(field: str, value: Any) -> None:
    state = recorded(_numbers_and_indices)
    result, live = translated(state, (1,))
    fields = json.loads(index.encode(PROGRAM, result.binding))
    assert fields[field] != value if field in fields else field == "extra"
    fields[field] = value
    with pytest.raises(Malformed):
        index.decode(json.dumps(fields).encode(), state, live, (1,))


def _numbers_and_indices() -> Any:
    x, rows = torch.ones(4, 3).to("tpu"), torch.tensor([1]).to("tpu")
    return (x * 0.5)[rows]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"program": '])
def test_invalid_entry_is_refused(data: bytes) -> None:
    state = recorded(_numbers_and_indices)
    with pytest.raises(Malformed):
        index.decode(data, state, (), ())


def test_digest_depends_on_all_inputs_of_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    records = recorded(_numbers_and_indices).records()

    def digest() -> str | None:
        return lookup.content(records, (1, 2), (0,))

    digests = {
        digest(),
        lookup.content(records, (1,), (0,)),
        lookup.content(records, (1, 2), ()),
        lookup.content(records, (1,), (2, 0)),
    }
    with options(bounds_check=False):
        digests.add(digest())
    monkeypatch.setitem(environment.programs.OPTIONS, "xla_some_flag", True)
    digests.add(digest())
    monkeypatch.undo()
    assert len(digests) == 6 and None not in digests


def test_key_depends_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    key = translation.trace_key("content")
    assert translation.trace_key("another") != key
    monkeypatch.setattr(translation, "environment_digest", lambda: "another")
    assert translation.trace_key("content") != key


def test_lazytpu_has_no_foreign_rules() -> None:
    registry.load()
    assert registry.foreign() == [] and not environment.extended()


def test_traces_with_foreign_rules_are_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    records = recorded(_numbers_and_indices).records()
    rule = registry.Rule(frozenset(), False, frozenset(), "aten.frac.default", lambda b, self: self)
    monkeypatch.setitem(registry.RULES, "aten.frac.default", rule)
    assert lookup.content(records, (1,), ()) is None


def test_traces_with_foreign_passes_are_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    records = recorded(_numbers_and_indices).records()
    assert lookup.content(records, (1,), ()) is not None
    with registered(ForeignPass, phase="final", targets=["tpu"]):
        assert lookup.content(records, (1,), ()) is not None
    with registered(ForeignPass):
        assert lookup.content(records, (1,), ()) is not None
    with registered(ForeignPass, phase="final"):
        assert lookup.content(records, (1,), ()) is None


class ForeignPass(CsePass):
    """A pass from outside lazytpu."""

    name = "mine"


def test_trace_without_canonical_text_is_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    state = recorded(_numbers_and_indices)
    records = state.records()
    monkeypatch.setitem(records[0].arguments, "other", slice(1))  # the record belongs to the trie
    assert lookup.content(records, (1,), ()) is None


def _step() -> torch.Tensor:
    x = torch.linspace(0, 1, 7).to("tpu")  # data, since a constant needs no trace
    return (x * 3).sin().cumsum(0)


def _entries() -> list[str]:
    return [entry.key for entry in store().entries("trace")]


def test_indexed_trace_is_loaded(empty_cache: Path, fresh_trie: Callable[..., None]) -> None:
    fresh_trie()
    expected = _step().cpu()
    (key,) = _entries()
    fresh_trie()
    lazytpu.reset_metrics()
    assert torch.equal(_step().cpu(), expected)
    assert _entries() == [key] and lazytpu.metrics()["compiles"] == 0
    graph = lazytpu.graphs()[-1]
    assert "compiled by an earlier process" in repr(graph)
    assert "lazytpu.sin" in graph.text() and "stablehlo.sine" in graph.stablehlo()


def test_indexed_trace_of_8_bit_floats_is_loaded(empty_cache: Path, fresh_trie: Callable[..., None]) -> None:
    x = torch.linspace(-2, 2, 6).to(torch.float8_e4m3fn)
    for compiles in (1, 0):
        fresh_trie()
        lazytpu.reset_metrics()
        with options(on_host=False):
            assert torch.equal(torch.cat([x.to("tpu")] * 2).cpu().float(), x.float().repeat(2))
        assert lazytpu.metrics()["compiles"] == compiles


@pytest.mark.parametrize("payload", [b"no JSON", b'{"program": "x"}'])
def test_malformed_entry_is_replaced_with_a_warning(
    empty_cache: Path, fresh_trie: Callable[..., None], payload: bytes
) -> None:
    fresh_trie()
    expected = _step().cpu()
    (key,) = _entries()
    good = store().get("trace", key)
    assert good is not None and store().put("trace", key, payload, {})
    fresh_trie()
    with pytest.warns(CacheWarning, match=rf"the cached trace {key[:16]} .* is damaged or foreign"):
        assert torch.equal(_step().cpu(), expected)
    replaced = store().get("trace", key)
    assert replaced is not None and replaced.payload == good.payload


def test_entry_of_another_program_is_refused(empty_cache: Path, fresh_trie: Callable[..., None]) -> None:
    fresh_trie()
    expected = _step().cpu()
    (key,) = _entries()
    good = store().get("trace", key)
    assert good is not None
    (torch.ones(3).to("tpu") + 1).cpu()
    wrong = next(entry.key for entry in store().entries("program") if entry.key not in good.payload.decode())
    fields = {**json.loads(good.payload), "program": wrong}
    assert store().put("trace", key, json.dumps(fields).encode(), {})
    fresh_trie()
    with pytest.warns(CacheWarning, match="its program takes or gives something else"):
        assert torch.equal(_step().cpu(), expected)


def test_trace_with_evicted_program_is_compiled(empty_cache: Path, fresh_trie: Callable[..., None]) -> None:
    fresh_trie()
    expected = _step().cpu()
    (trace,) = store().entries("trace")
    program = str(trace.about["program"])
    assert store().remove("program", program)
    fresh_trie()
    lazytpu.reset_metrics()
    assert torch.equal(_step().cpu(), expected)
    assert lazytpu.metrics()["compiles"] == 1 and store().has("program", program)


def test_program_that_cannot_be_stored_is_not_indexed(
    empty_cache: Path, fresh_trie: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lazytpu.runtime.xla.client.serialize", lambda executable: None)
    fresh_trie()
    _step().cpu()
    assert store().entries("program") == store().entries("trace") == []


def test_dump_is_written_for_an_indexed_trace(
    empty_cache: Path, fresh_trie: Callable[..., None], tmp_path: Path
) -> None:
    fresh_trie()
    _step().cpu()
    fresh_trie()
    with options(dump=tmp_path / "dump"):
        _step().cpu()
    assert sorted(path.suffixes for path in (tmp_path / "dump").iterdir()) == [
        [".about", ".txt"],
        [".imported", ".mlir"],
        [".json"],
        [".lazytpu", ".mlir"],
        [".stablehlo", ".mlir"],
        [".why", ".txt"],
    ]
