"""The named arguments and results of an exported program: of its function in StableHLO, in JAX, and in lazytpu.

The function's arguments are the weights, sorted by name, the seed if there is one, and the user's tensors. Its results
are the user's tensors, the new values of weights, and the new values of overwritten arguments. In JAX it is

    call(weights, *args, **kwargs) -> results
    call(weights, seed, *args, **kwargs) -> results, new_weights, new_inputs

with a dict for the weights by name. `seed` is present if the program draws random numbers, `new_weights` (a dict) if it
overwrites any, `new_inputs` (a dict) if it overwrites arguments. Arguments that are no tensors were part of the export;
None takes their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lazytpu.aten.host_arrays import to_numpy
from lazytpu.exporting.trees import Tree

PLAIN = (type(None), bool, int, float, str)
"Types of arguments and results that are part of the program."
SEED = "seed"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by name: its dtype by torch's name ("float32") and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Dtype and shape: "float32[2, 3]"."""
        return f"{self.dtype}{list(self.shape)}"

    def as_json(self) -> Any:
        """The fields as JSON."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument or result that is no tensor: None, a number or a string, and part of the program."""

    name: str
    value: Any

    def as_json(self) -> Any:
        """The fields as JSON."""
        return {"name": self.name, "constant": self.value}

    def agrees(self, value: Any) -> bool:
        """Whether a value equals this one; NaN equals itself."""
        same = value == self.value or (value != value and self.value != self.value)
        return type(value) is type(self.value) and same


Leaf = Tensor | Constant
SEED_TENSOR = Tensor(SEED, "uint32", (2,))


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments and results of a program. `inputs` are the leaves of `input_tree`, the user's (args, kwargs), and
    `outputs` the leaves of `output_tree`. `new_weights` and `new_inputs` name the overwritten tensors."""

    weights: tuple[Tensor, ...]
    inputs: tuple[Leaf, ...]
    input_tree: Tree
    outputs: tuple[Leaf, ...]
    output_tree: Tree
    new_weights: tuple[str, ...]
    new_inputs: tuple[str, ...]
    seeded: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The user's tensors among the inputs."""
        return tuple(leaf for leaf in self.inputs if isinstance(leaf, Tensor))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """All arguments of the function, in order."""
        return (*self.weights, *([SEED_TENSOR] if self.seeded else ()), *self.tensors)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """All results of the function, in order."""
        weights = {weight.name: weight for weight in self.weights}
        inputs = {tensor.name: tensor for tensor in self.tensors}
        return (
            *(leaf for leaf in self.outputs if isinstance(leaf, Tensor)),
            *(weights[name] for name in self.new_weights),
            *(inputs[name] for name in self.new_inputs),
        )

    def jax_arguments(self, make: Callable[[Tensor], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) of the JAX function, with `make` applied to each tensor."""
        leaves = iter([make(leaf) if isinstance(leaf, Tensor) else None for leaf in self.inputs])
        args, kwargs = self.input_tree.build(leaves)
        seed = (make(SEED_TENSOR),) if self.seeded else ()
        return ({weight.name: make(weight) for weight in self.weights}, *seed, *args), kwargs

    def jax_results(self, make: Callable[[Tensor], Any]) -> Any:
        """Return the results of the JAX function, with `make` applied to each tensor."""
        results = self.output_tree.build(
            iter([make(leaf) if isinstance(leaf, Tensor) else None for leaf in self.outputs])
        )
        named = ((self.new_weights, self.weights), (self.new_inputs, self.tensors))
        new = [{tensor.name: make(tensor) for tensor in among if tensor.name in names} for names, among in named]
        if self.new_inputs:
            return results, *new
        return (results, new[0]) if self.new_weights else results

    def as_json(self) -> dict[str, Any]:
        """Return the signature as JSON."""
        return {
            "weights": [weight.as_json() for weight in self.weights],
            "seed": self.seeded,
            "inputs": [leaf.as_json() for leaf in self.inputs],
            "input_tree": self.input_tree.as_json(),
            "outputs": [leaf.as_json() for leaf in self.outputs],
            "output_tree": self.output_tree.as_json(),
            "new_weights": list(self.new_weights),
            "new_inputs": list(self.new_inputs),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Signature:
        """Read the result of `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
        return Signature(
            tuple(map(_tensor, value["weights"])),
            tuple(map(_leaf, value["inputs"])),
            Tree.from_json(value["input_tree"]),
            tuple(map(_leaf, value["outputs"])),
            Tree.from_json(value["output_tree"]),
            tuple(map(str, value["new_weights"])),
            tuple(map(str, value["new_inputs"])),
            bool(value["seed"]),
        )


def _tensor(value: Mapping[str, Any]) -> Tensor:
    return Tensor(str(value["name"]), str(value["dtype"]), tuple(int(size) for size in value["shape"]))


def _leaf(value: Mapping[str, Any]) -> Leaf:
    return Constant(str(value["name"]), value["constant"]) if "constant" in value else _tensor(value)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of arrays for the name of a torch dtype."""
    return to_numpy(torch.empty(0, dtype=getattr(torch, name), device="cpu")).dtype
