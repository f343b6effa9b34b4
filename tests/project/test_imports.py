"""Imports point in one direction: from a room to lower rooms, and never in a cycle between files.

A room is a folder of the package, or a module beside `__init__.py`. Imports inside functions and for type checkers
count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lazytpu"

# Each room with the rooms that it may import, from the lowest to the highest.
MAY_IMPORT = {
    "version": set(),
    "versions": set(),
    "by_release": {"versions"},
    "launcher": set(),
    "readers": set(),
    "native_stack": set(),
    "undisturbed": set(),
    "full_collections": set(),
    "collection": {"full_collections", "undisturbed"},
    "settings": {"readers"},
    "options": {"settings"},
    "interrupts": {"native_stack"},
    "timeline": set(),
    "trace": {"interrupts", "options"},
    "ports": {"timeline", "trace"},
    "ir": set(),
    "passes": {"ir"},
    "runtime": {"launcher", "options", "readers", "timeline", "undisturbed", "version", "versions"},
    "lowering": {"ir", "runtime"},
    "aten": {"by_release", "ir", "trace"},
    "inspection": {"ir", "lowering", "options", "passes", "runtime", "version"},
    "engine": {
        "aten", "collection", "inspection", "interrupts", "ir", "lowering", "options", "passes", "ports", "runtime",
        "timeline", "trace", "undisturbed",
    },
    # `wiring` gives it the engine
    "frontend": {
        "by_release", "collection", "full_collections", "interrupts", "launcher", "options", "ports", "settings",
        "timeline", "trace", "versions",
    },
    "dynamo": {"frontend", "ir", "options", "trace"},
    "distributed": {"engine", "frontend", "interrupts", "options", "runtime", "trace"},
    "wiring": {"aten", "distributed", "dynamo", "engine", "frontend", "options", "versions"},
    "kernels": {"aten", "engine", "frontend", "ir", "lowering", "options", "passes", "runtime", "trace"},
    "pallas": {"frontend", "kernels"},
    "interop": {"kernels", "pallas"},
    "helion": {"aten", "frontend", "ir", "lazytpu", "pallas", "runtime"},
    "rehearsal": {
        "aten", "distributed", "engine", "frontend", "inspection", "ir", "lowering", "options", "passes", "runtime",
        "trace", "wiring",
    },
    "exporting": {
        "aten", "frontend", "ir", "lowering", "options", "passes", "rehearsal", "runtime", "trace", "version", "wiring",
    },
    "lazytpu": {
        "aten", "dynamo", "engine", "exporting", "frontend", "inspection", "interop", "options", "pallas", "rehearsal",
        "runtime", "trace", "version", "wiring",
    },
    "doctor": {"engine", "lazytpu", "lowering", "passes", "readers", "runtime", "settings", "version", "versions"},
}  # fmt: skip

# The folders of each room, from the lowest to the highest: each may import earlier ones.
LAYERS = {
    "ir": "building",
    "passes": "clusters loops patterns collectives attention fusions layout padding",
    "runtime": "xla cache buffers jobs tpu compiling",
    "lowering": "templates",
    "aten": "pointwise views optimizers shape reductions indexing images linalg losses sorting random layers",
    "inspection": "tpu step html",
    "engine": "errors memory programs recompiles trace_cache sizes launching compiling cutting",
    "frontend": "device inference libraries recording storage ops patches sparse",
    "doctor": "checks",
}


@cache
def modules() -> dict[str, Path]:
    """Return the files of the package by module name; a package is its `__init__.py`."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return (line, dotted name) of each import in a module, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import, which this test does not follow"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@cache
def imports() -> nx.DiGraph[str]:
    """Return a graph with an edge for each import of a module by another, with its `line`."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for importer, path in modules().items():
        for line, name in imported(ast.parse(path.read_text())):
            module = name if name in modules() else name.rpartition(".")[0]
            if module in modules() and module != importer:
                graph.add_edge(importer, module, line=line)
    return graph


def room(module: str) -> str:
    """Return the room of a module; the package itself has its own name."""
    return (module.split(".") + ["lazytpu"])[1]


def rooms(graph: nx.DiGraph[str]) -> nx.DiGraph[str]:
    """Return the graph of the rooms' imports, from the graph of modules."""
    return nx.DiGraph((room(a), room(b)) for a, b in graph.edges if room(a) != room(b))


def circles(graph: nx.DiGraph[str]) -> list[str]:
    """Return each cycle as text: its members, and one path from the first member around it."""
    members = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    cycles = [nx.find_cycle(graph.subgraph(circle), circle[0]) for circle in members]
    return [
        f"{', '.join(circle)}: {' -> '.join([*(a for a, _ in cycle), cycle[-1][1]])}"
        for circle, cycle in zip(members, cycles, strict=True)
    ]


def test_table_names_every_room():
    names = {room(name) for name in modules()}
    assert names == MAY_IMPORT.keys()


def test_table_has_no_cycle():
    graph = nx.DiGraph((above, below) for above, rooms in MAY_IMPORT.items() for below in rooms)
    assert not circles(graph)


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_imports_point_down(name: str):
    wrong = [
        f"{modules()[importer].relative_to(ROOT)}:{line}: {name} imports {module}"
        for importer, module, line in imports().edges(data="line")
        if room(importer) == name and room(module) not in MAY_IMPORT[name] | {name}
    ]
    assert not wrong, "\n" + "\n".join(sorted(wrong))


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_table_allows_no_unused_import(name: str):
    graph = rooms(imports())
    below = set(graph.successors(name)) if name in graph else set()
    assert MAY_IMPORT[name] <= below, "an arrow that no import needs any more: take it out of the table"


def part(module: str) -> str:
    """Return the folder of a module's room as a path below the package, or the module if it is in no folder."""
    place = modules()[module].relative_to(PACKAGE).parts
    return "/".join(place[:2])


def parts(room_name: str) -> nx.DiGraph[str]:
    """Return the graph of imports between folders and files of a room."""
    inside = [(a, b) for a, b in imports().edges if room(a) == room_name == room(b)]
    return nx.DiGraph((part(a), part(b)) for a, b in inside if part(a) != part(b))


def test_layers_name_every_folder():
    folders = {path.parent.relative_to(PACKAGE).parts[:2] for path in modules().values()}
    used = {name: {entry[1] for entry in folders if len(entry) > 1 and entry[0] == name} for name in MAY_IMPORT}
    assert {name: set(text.split()) for name, text in LAYERS.items()} == {n: e for n, e in used.items() if e}


@pytest.mark.parametrize("name", LAYERS)
def test_imports_between_folders_of_a_room_point_down(name: str):
    height = {f"{name}/{folder}": i for i, folder in enumerate(LAYERS[name].split())}
    up = [(a, b) for a, b in parts(name).edges if a in height and b in height and height[a] < height[b]]
    assert not up, f"these folders import folders above them: {up}"
    assert not circles(parts(name)), "\n" + "\n".join(circles(parts(name)))


def test_no_cycle_between_files():
    assert not circles(imports()), "\n" + "\n".join(circles(imports()))


def test_cycles_are_detected():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    assert circles(graph) == ["a, b, c: a -> b -> c -> a"]


@pytest.mark.parametrize("module", modules())
def test_imports_by_name_stay_in_the_room(module: str):
    """A registry may import the files of its room by name; other rooms are imported by a statement."""
    tree = ast.parse(modules()[module].read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    by_name = [call for call in calls if ast.unparse(call.func).endswith(("import_module", "__import__"))]
    constants = [node.value for call in by_name for node in ast.walk(call) if isinstance(node, ast.Constant)]
    names = [text for text in constants if isinstance(text, str) and text.startswith("lazytpu.")]
    assert {room(name) for name in names} <= {room(module)}


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("trace", "jax"),
        ("trace", "torch"),
        ("ir", "jax"),
        ("ir", "torch"),
        ("passes", "jax"),
        ("passes", "torch"),
        ("lowering", "torch"),
        ("runtime", "torch"),
        ("runtime", "xdsl"),
        ("frontend", "jax"),
        ("frontend", "xdsl"),
        ("ports", "jax"),
    ],
)
def test_room_imports_no_library(name: str, library: str):
    violations = {
        f"{path.relative_to(ROOT)}:{line}: {imported_name}"
        for module, path in modules().items()
        if room(module) == name
        for line, imported_name in imported(ast.parse(path.read_text()))
        if imported_name.split(".")[0] == library
    }
    assert not violations, "\n" + "\n".join(sorted(violations))
