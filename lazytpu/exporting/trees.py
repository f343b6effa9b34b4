"""Nested arguments and results: tuples, lists and dicts, as in JAX and JSON.

A tree's leaves are in JAX's order, which sorts the keys of dicts. torch's containers of other types are converted: to a
dict if their entries have names, else to a tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lazytpu.frontend.torch_private import pytree

LEAF = "*"


@dataclass(frozen=True, slots=True)
class Tree:
    """A leaf ("*"), or a container: "tuple", "list" or "dict" of `children`, which for a dict are sorted by their
    `keys`. `order` are the keys in the dict's own order."""

    kind: str
    children: tuple[Tree, ...] = ()
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = field(default=(), compare=False)

    def build(self, leaves: Iterator[Any]) -> Any:
        """Return the containers, with the next of `leaves` at each leaf."""
        if self.kind == LEAF:
            return next(leaves)
        children = [child.build(leaves) for child in self.children]
        if self.kind == "dict":
            return self._ordered(children)
        return tuple(children) if self.kind == "tuple" else children

    def as_json(self) -> Any:
        """Return the tree as JSON: "*", or {kind: children}."""
        if self.kind == LEAF:
            return LEAF
        children = [child.as_json() for child in self.children]
        return {self.kind: self._ordered(children) if self.kind == "dict" else children}

    def _ordered(self, children: Sequence[Any]) -> dict[str, Any]:
        by_key = dict(zip(self.keys, children, strict=True))
        return {key: by_key[key] for key in self.order}

    @staticmethod
    def from_json(value: Any) -> Tree:
        """Read the result of `as_json`. Raises ValueError for anything else."""
        if value == LEAF:
            return Tree(LEAF)
        if isinstance(value, dict) and len(value) == 1:
            ((kind, children),) = value.items()
            if kind == "dict" and isinstance(children, dict):
                keys = sorted(children)
                return Tree(kind, tuple(Tree.from_json(children[key]) for key in keys), tuple(keys), tuple(children))
            if kind in ("tuple", "list") and isinstance(children, list):
                return Tree(kind, tuple(map(Tree.from_json, children)))
        raise ValueError(f"expected a tree of tuples, lists and dicts, got {value!r}")

    def __str__(self) -> str:
        if self.kind == "dict":
            return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(self.keys, self.children, strict=True)) + "}"
        inside = ", ".join(map(str, self.children))
        return {LEAF: LEAF, "list": f"[{inside}]", "tuple": f"({inside})"}[self.kind]


def tree_of(spec: Any) -> tuple[Tree, list[int]]:
    """Return the tree of torch's TreeSpec, and for each of its leaves the number of the leaf in torch's order.

    Raises TypeError for a dict with keys other than strings, which `jax.export` cannot save.
    """
    order: list[int] = []
    return _tree(spec, iter(range(spec.num_leaves)), order), order


def _tree(spec: Any, leaves: Iterator[int], order: list[int]) -> Tree:
    if spec.is_leaf():
        order.append(next(leaves))
        return Tree(LEAF)
    subtrees: list[tuple[Tree, list[int]]] = []
    for child in spec.children():
        mine: list[int] = []
        subtrees.append((_tree(child, leaves, mine), mine))
    keys = _keys(spec)
    if keys is None:
        order += [number for _, mine in subtrees for number in mine]
        return Tree("list" if spec.type is list else "tuple", tuple(child for child, _ in subtrees))
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"expected dicts with strings as keys, which jax.export can save; got the key {wrong[0]!r}")
    by_key = sorted(zip(keys, subtrees, strict=True), key=lambda pair: pair[0])
    order += [number for _, (_, mine) in by_key for number in mine]
    return Tree("dict", tuple(child for _, (child, _) in by_key), tuple(key for key, _ in by_key), tuple(keys))


def _keys(spec: Any) -> Sequence[Any] | None:
    """Return the keys of a container's entries; None when they have none."""
    if isinstance(spec.context, list | tuple) and len(spec.context) == spec.num_children:
        named = issubclass(spec.type, dict) or all(isinstance(key, str) for key in spec.context)
        if named and not issubclass(spec.type, list | tuple):
            return spec.context
    return None


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """Return the leaves of nested containers, in the tree's order, and the tree."""
    leaves, spec = pytree.tree_flatten(value)
    tree, order = tree_of(spec)
    return [leaves[i] for i in order], tree
