"""Registered passes, and the pipelines with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lazytpu.passes import register, registered, registry, unregister
from lazytpu.passes.cse import CsePass
from lazytpu.passes.phases import ORDER, PHASES
from lazytpu.passes.pipeline import CPU, for_target, parse, run_pipeline
from lazytpu.passes.registry import BUILT_IN, RegisteredPass
from lazytpu.passes.target import Target
from tests import zygote
from tests.passes.modules import parse_main

V6E = Target("tpu", "v6e")


@dataclass(frozen=True)
class Nothing(ModulePass):
    """Changes nothing."""

    name = "nothing"

    limit: int = 3

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


class Another(Nothing):
    name = "another"


def test_every_phase_is_in_the_order_once() -> None:
    assert [entry.strip("<>") for entry in ORDER if entry.startswith("<")] == list(PHASES)
    assert all(entry in BUILT_IN for entry in ORDER if not entry.startswith("<"))


@pytest.mark.parametrize("phase", PHASES)
def test_pass_runs_at_its_phase_while_registered(phase: str) -> None:
    before = for_target(CPU)
    with registered(Nothing, phase=phase):
        names = for_target(CPU).split(",")
        assert names.count("nothing") == 1
        assert [name for name in names if name != "nothing"] == before.split(",")
        shared = [entry for entry in ORDER[: ORDER.index(f"<{phase}>")] if not entry.startswith("<")]
        assert [n for n in names[: names.index("nothing")] if n in ORDER] == shared
        records = run_pipeline(parse_main("%x : tensor<4xf32>", "func.return %x : tensor<4xf32>"), verify=True)
        assert "nothing" in [record.name for record in records]
    assert for_target(CPU) == before


def test_passes_of_one_phase_run_in_order_of_registration() -> None:
    with registered(Nothing, phase="final"), registered(Another, phase="final"):
        assert "nothing,another,mark-donation" in for_target(CPU)


def test_targets() -> None:
    with registered(Nothing, phase="layout", targets=["v6e", "gpu"]):
        assert "nothing" in for_target(V6E) and "nothing" in for_target(Target("gpu"))
        assert "nothing" not in for_target(CPU) and "nothing" not in for_target(Target("tpu", "v5e"))
        assert registry.foreign(V6E) == ["nothing"] and registry.foreign(CPU) == []
    with registered(Nothing):  # no phase: only where it is named
        assert "nothing" not in for_target(V6E) and registry.foreign(V6E) == []
        (parsed,) = parse("nothing{limit=7}")
        assert parsed == Nothing(limit=7)


def test_target_facts_are_passed_as_options() -> None:
    entry = RegisteredPass("assign", lambda: Nothing, target_options=("generation",))
    assert (entry.text(V6E), entry.text(Target("tpu"))) == ("assign{generation=v6e}", "assign")


def test_decorator_registers() -> None:
    @register("decorated", phase="patterns", targets="tpu")
    class Decorated(Nothing):
        pass

    try:
        assert Decorated.name == "decorated" and "decorated" in for_target(V6E)
        (parsed,) = parse("decorated")
        assert type(parsed) is Decorated
    finally:
        unregister("decorated")
    assert "decorated" not in for_target(V6E)


def test_redefined_class_replaces_its_phase() -> None:
    classes: list[type[Nothing]] = []
    for _ in range(2):

        @register("again")
        class Again(Nothing):
            pass

        classes.append(Again)
    assert registry.passes()["again"].load() is classes[1]
    unregister("again")


def test_invalid_registrations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a pass named 'cse' already, in lazytpu\.passes\.cse"), registered(CsePass):
        pass
    with registered(Nothing), pytest.raises(ValueError, match="a pass named 'nothing' already"):
        register("nothing")(type("Other", (Nothing,), {"name": "nothing"}))
    with pytest.raises(ValueError, match=r"no phase 'end' in the pipeline; the phases are recorded, .*final"):
        register("mine", phase="end")
    with pytest.raises(ValueError, match="no target 'v1'; targets are cpu"):
        register("mine", targets=["v1"])
    with pytest.raises(ValueError, match="registered as 'mine', but its `name` is 'nothing'"):
        register("mine")(Nothing)
    with pytest.raises(TypeError, match="takes the name of the pass"):
        register(Nothing)  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyError):
        unregister("mine")


def test_watchers_are_notified() -> None:
    calls: list[str] = []
    watch = lambda: calls.append(for_target(CPU))  # noqa: E731
    registry.watch(watch)
    try:
        with registered(Nothing, phase="final"):
            assert len(calls) == 1 and "nothing" in calls[0]
        assert len(calls) == 2 and "nothing" not in calls[1]
    finally:
        registry._watchers.remove(watch)


PLUGIN = """
from xdsl.passes import ModulePass
from lazytpu.passes import register

@register("plugged", phase="final")
class PluggedPass(ModulePass):
    def apply(self, ctx, op):
        pass
"""


def test_entry_point_is_imported_before_the_first_program(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    about = tmp_path / "plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lazytpu.passes]\nplugin = plugin\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from lazytpu.passes.registry import for_target\nfrom lazytpu.passes.target import Target\n"
        "print('plugin' in sys.modules, for_target(Target('cpu')))"
    )
    done = zygote.run(["-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False dce,") and done.stdout.strip().endswith(",plugged,mark-donation")


@pytest.fixture
def undiscovered() -> Iterator[None]:
    registry._discover.cache_clear()
    yield
    registry._discover.cache_clear()


@pytest.mark.usefixtures("undiscovered")
def test_failing_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no.such.module", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [broken] if group == "lazytpu.passes" else [])
    with pytest.raises(RuntimeError, match=r"entry point broken = no\.such\.module, which fails to load: Mod"):
        registry.passes()


def test_listing_passes_imports_none() -> None:
    code = (
        "import sys\nfrom lazytpu.passes.registry import for_target\nfrom lazytpu.passes.target import Target\n"
        "for_target(Target('tpu', 'v6e'))\nprint([name for name in sys.modules if name.split('.')[0] == 'xdsl'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
