"""Facts about rules that a process reads from disk instead of importing the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazytpu.aten import registry
from lazytpu.engine.trace_cache import source_facts as remembered
from lazytpu.runtime.cache.store import CacheWarning, store
from lazytpu.runtime.cache.translation import environment, translators


@pytest.fixture
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    monkeypatch.setattr(registry, "_remembered", {})


def test_list_is_computed_once(empty_cache: Path) -> None:
    calls: list[int] = []

    def make() -> list[str]:
        calls.append(1)
        return ["aten.add.Tensor", "ü"]

    assert [remembered.remembered("test", make) for _ in range(3)] == 3 * [["aten.add.Tensor", "ü"]]
    assert remembered.remembered("another", list) == []
    assert len(calls) == 1 and len(store().entries("list")) == 2


@pytest.mark.parametrize("payload", [b"{}", b"[1]", b"[", b"\xff"])
def test_damaged_list_is_replaced_with_a_warning(empty_cache: Path, payload: bytes) -> None:
    remembered.remembered("test", lambda: ["a"])
    (entry,) = store().entries("list")
    store().put("list", entry.key, payload, {})
    with pytest.warns(CacheWarning, match="the cached list .* is damaged or foreign"):
        assert remembered.remembered("test", lambda: ["a"]) == ["a"]
    again = store().get("list", entry.key)
    assert again is not None and again.payload == b'["a"]'


def test_lists_are_separate_for_each_torch_and_lazytpu(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered.remembered("test", lambda: ["ours"])
    current = translators()
    monkeypatch.setattr(remembered, "translators", lambda: {**current, "lazytpu source": "another"})
    assert remembered.remembered("test", lambda: ["theirs"]) == ["theirs"]
    monkeypatch.setattr(remembered, "translators", lambda: {**current, "torch": "1.0"})
    assert remembered.remembered("test", lambda: ["old"]) == ["old"]


def test_list_is_compatible_with_its_own_environment(empty_cache: Path) -> None:
    """`torch.__version__` names the build, which the versions of wheels on PyPI do not."""
    remembered.remembered("test", lambda: ["ours"])
    (entry,) = store().entries("list")
    assert entry.about["made_for"].items() <= environment().items()


def test_foreign_rules_disable_the_stored_list(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered.remembered("test", lambda: ["ours"])
    rule = registry.Rule(frozenset(), False, frozenset(), "shop.sale.default", lambda b, self: self)
    monkeypatch.setitem(registry.RULES, rule.name, rule)
    assert remembered.remembered("test", lambda: ["ours and theirs"]) == ["ours and theirs"]
    assert len(store().entries("list")) == 1


def test_stored_facts_equal_the_facts_of_the_rules(
    empty_cache: Path, nothing_remembered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts on disk equal the facts of the rules without importing them; a rule of the script is added."""
    expected = {
        name: registry.Facts(rule.numbers, rule.random, rule.specialized) for name, rule in registry.RULES.items()
    }
    remembered.recall_rules()
    monkeypatch.setattr(registry, "RULES", {})
    monkeypatch.setattr(registry, "_families", [])
    remembered.recall_rules()
    assert registry.facts() == expected and len(expected) > 500
    for field in ("random", "numbers", "specialized"):
        assert any(getattr(facts, field) for facts in expected.values())
    mine = registry.Rule(frozenset({"price"}), False, frozenset(), "shop.sale.default", lambda b, self: self)
    monkeypatch.setitem(registry.RULES, mine.name, mine)
    assert registry.facts()[mine.name] is mine and len(registry.facts()) == len(expected) + 1
