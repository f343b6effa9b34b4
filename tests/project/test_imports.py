"""Imports point one way: from a room to those below it, and never in a circle between files.

A room is a folder of the package, or a module beside `__init__.py`. Imports inside functions count, and so do those for
type checkers only.
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

# Each room with the rooms that it may import, from the bottom up.
MAY_IMPORT = {
    "version": set(),
    "versions": set(),
    "by_release": {"versions"},
    "launcher": set(),
    "readers": set(),
    "native_stack": set(),
    "undisturbed": set(),
    "collection": {"undisturbed"},
    "settings": {"readers"},
    "options": {"settings"},
    "interrupts": {"native_stack"},
    "trace": {"interrupts", "options"},
    "ports": {"trace"},
    "ir": set(),
    "passes": {"ir"},
    "runtime": {"launcher", "options", "readers", "undisturbed", "version", "versions"},
    "lowering": {"ir", "runtime"},
    "aten": {"by_release", "ir", "trace"},
    "inspection": {"ir", "lowering", "options", "passes", "runtime", "version"},
    "engine": {
        "aten", "collection", "inspection", "interrupts", "ir", "lowering", "options", "passes", "ports", "runtime",
        "trace", "undisturbed",
    },
    # the engine is given to it by `wiring`
    "frontend": {
        "by_release", "collection", "interrupts", "launcher", "options", "ports", "settings", "trace", "versions",
    },
    "dynamo": {"frontend", "ir", "options", "trace"},
    "distributed": {"engine", "frontend", "interrupts", "options", "runtime", "trace"},
    "wiring": {"aten", "distributed", "dynamo", "engine", "frontend", "options", "versions"},
    "kernels": {"aten", "engine", "frontend", "ir", "lowering", "options", "passes", "runtime", "trace"},
    "pallas": {"frontend", "kernels"},
    "interop": {"kernels", "pallas"},
    "rehearsal": {
        "aten", "engine", "frontend", "inspection", "ir", "lowering", "options", "passes", "runtime", "trace", "wiring",
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

# The folders inside of each room, from the bottom up: each may import those before it.
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
    """The files of the package by the names of their modules; a package has the name of its `__init__.py`."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, at any depth."""
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
    """An edge for each import of a module by another, with the `line`."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for importer, path in modules().items():
        for line, name in imported(ast.parse(path.read_text())):
            module = name if name in modules() else name.rpartition(".")[0]
            if module in modules() and module != importer:
                graph.add_edge(importer, module, line=line)
    return graph


def room(module: str) -> str:
    """The room of a module; that of the package itself is called by its name."""
    return (module.split(".") + ["lazytpu"])[1]


def rooms(graph: nx.DiGraph[str]) -> nx.DiGraph[str]:
    """The rooms' imports of each other, by those of their modules."""
    return nx.DiGraph((room(a), room(b)) for a, b in graph.edges if room(a) != room(b))


def circles(graph: nx.DiGraph[str]) -> list[str]:
    """Each circle as text: its members, and the way round from the first of them."""
    members = [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]
    ways = [nx.find_cycle(graph.subgraph(circle), circle[0]) for circle in members]
    return [
        f"{', '.join(circle)}: {' -> '.join([*(a for a, _ in way), way[-1][1]])}"
        for circle, way in zip(members, ways, strict=True)
    ]


def test_the_table_names_every_room():
    names = {room(name) for name in modules()}
    assert names == MAY_IMPORT.keys()


def test_the_table_has_no_cycle():
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
def test_the_table_allows_no_more_than_there_is(name: str):
    graph = rooms(imports())
    below = set(graph.successors(name)) if name in graph else set()
    assert MAY_IMPORT[name] <= below, "an arrow that no import needs any more: take it out of the table"


def part(module: str) -> str:
    """The folder of a room that a module is in, as a path below the package, or the module itself if it is in none."""
    place = modules()[module].relative_to(PACKAGE).parts
    return "/".join(place[:2])


def parts(room_name: str) -> nx.DiGraph[str]:
    """The imports between folders and files of a room."""
    inside = [(a, b) for a, b in imports().edges if room(a) == room_name == room(b)]
    return nx.DiGraph((part(a), part(b)) for a, b in inside if part(a) != part(b))


def test_the_layers_name_every_folder():
    folders = {path.parent.relative_to(PACKAGE).parts[:2] for path in modules().values()}
    found = {name: {each[1] for each in folders if len(each) > 1 and each[0] == name} for name in MAY_IMPORT}
    assert {name: set(text.split()) for name, text in LAYERS.items()} == {n: each for n, each in found.items() if each}


@pytest.mark.parametrize("name", LAYERS)
def test_imports_between_folders_of_a_room_point_down(name: str):
    height = {f"{name}/{folder}": i for i, folder in enumerate(LAYERS[name].split())}
    up = [(a, b) for a, b in parts(name).edges if a in height and b in height and height[a] < height[b]]
    assert not up, f"these folders import folders above them: {up}"
    assert not circles(parts(name)), "\n" + "\n".join(circles(parts(name)))


def test_no_cycle_between_files():
    assert not circles(imports()), "\n" + "\n".join(circles(imports()))


def test_a_cycle_is_found():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    assert circles(graph) == ["a, b, c: a -> b -> c -> a"]


@pytest.mark.parametrize("module", modules())
def test_imports_by_name_stay_in_the_room(module: str):
    """A registry may import the files of its room by name; what another room holds is imported by a statement."""
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
def test_a_room_does_not_know_a_library(name: str, library: str):
    known = {
        f"{path.relative_to(ROOT)}:{line}: {imported_name}"
        for module, path in modules().items()
        if room(module) == name
        for line, imported_name in imported(ast.parse(path.read_text()))
        if imported_name.split(".")[0] == library
    }
    assert not known, "\n" + "\n".join(sorted(known))
