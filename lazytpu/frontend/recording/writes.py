"""Selection of torch's overlap checks for a writing op; they are made once per trie state."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.lines import warn_user
from lazytpu.frontend.recording.overlap import (
    Internal,
    check_no_internal_overlap,
    check_no_overlap,
    check_no_partial_overlap,
    internal_overlap,
)

# torch allows these to write to an expanded tensor.
_MAY_OVERLAP_ITSELF = frozenset(
    """fill_ zero_ _foreach_zero_ index_fill_ index_put_ masked_fill_ _index_put_impl_ threshold_ tril_ triu_""".split()
)
# These read other elements than they write at the same time: no overlap is allowed.
_NO_OVERLAP = frozenset(
    """index_add_ index_copy_ index_fill_ index_put_ _index_put_impl_ put_ scatter_ scatter_add_
    scatter_reduce_""".split()
)
_EXAMPLES = {  # what else warns, by the op that may write to an expanded tensor and warns
    "masked_fill_": "tensor[mask] = scalar",
    "index_fill_": "tensor[mask] = scalar",
    "index_put_": "tensor[indices] = tensor",
}
_READ_FIRST = frozenset({("masked_fill_", "value"), ("ldexp_", "other")})
"The ops and arguments that torch reads as a whole before it writes: a number, and exponents of powers."


def check_writes(op: OpOverload, bound: dict[str, Any]) -> None:
    """Raise torch's RuntimeError when a written tensor overlaps itself, or partly overlaps a tensor that is read."""
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written:
        return
    name = op._schema.name.partition("::")[2]
    targets = [t for w in written for t in _tensors(bound[w])]
    read = [n for n in bound if n not in written and (name, n) not in _READ_FIRST]
    sources = [t for n in read for t in _tensors(bound[n])]
    for target in targets:
        if name not in _MAY_OVERLAP_ITSELF or (name == "fill_" and sources):  # a tensor is copied
            check_no_internal_overlap(target)
        for source in sources:
            if source.device == target.device:
                (check_no_overlap if name in _NO_OVERLAP else check_no_partial_overlap)(target, source)


def warn_of_expanded(op: OpOverload, bound: dict[str, Any]) -> None:
    """Give torch's warning if an op writes to an expanded tensor and torch is to refuse that one day."""
    name = op._schema.name.partition("::")[2]
    example = _EXAMPLES.get(name)
    if example is not None and internal_overlap(bound["self"]) is Internal.YES:
        warn_user(
            f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this "
            f"operation. This also applies to advanced indexing e.g. {example}"
        )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, list | tuple) else []
