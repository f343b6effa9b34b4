"""Queries of the frontend about an op before it records it: whether it is supported, and facts that recording needs."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from lazytpu.aten import registry
from lazytpu.aten.errors import ImportFailure
from lazytpu.aten.schema import functional, signature
from lazytpu.aten.support import missing_rule, supported
from lazytpu.engine.errors.cuts import not_imported
from lazytpu.ports import OpFacts
from lazytpu.trace.extract import extract
from lazytpu.trace.trie import State

# Ops whose float32 products obey torch.set_float32_matmul_precision.
USES_PRECISION = frozenset(
    """mm bmm addmm baddbmm addbmm mv addmv dot vdot linear addr convolution convolution_backward
    attention attention_dropout attention_backward recurrent recurrent_backward einsum matmul _convolution
    linear_backward""".split()
)


def facts(op: OpOverload) -> OpFacts:
    """Return which arguments of `op` are run-time numbers, or become so once they vary, whether it is random, and
    whether matmul precision affects it.

    Raise NotImplementedError, with the op and the way to add it, if the op is not supported.
    """
    if not supported(op):
        raise missing_rule(op)
    rules = registry.facts()
    rule = rules.get(str(op))
    if rule is None and signature(op).written:
        functional_op = functional(op)
        rule = None if functional_op is None else rules.get(str(functional_op))
    names = set(signature(op).names)
    numbers = frozenset() if rule is None else rule.numbers & names
    specialized = frozenset() if rule is None else rule.specialized & names
    random = torch.Tag.nondeterministic_seeded in op.tags or (rule is not None and rule.random)
    uses_precision = op._schema.name.partition("::")[2].rstrip("_") in USES_PRECISION
    return OpFacts(numbers, random, uses_precision, specialized)


def check_import(state: State) -> None:
    """Raise RuntimeError, or torch.OutOfMemoryError, if the last record of a trace cannot be imported. At a cut, the
    next reader would get that error."""
    from xdsl.utils.exceptions import VerifyException

    from lazytpu.aten.importer import import_trace  # loads xDSL

    records = state.records()
    try:
        import_trace(extract(records, (len(records) - 1,)).state.records(), (), ()).module.verify()
    except ImportFailure as error:
        raise not_imported(error) from error.__cause__
    except (RuntimeError, VerifyException) as error:  # torch's decompositions raise RuntimeError
        raise not_imported(ImportFailure(records[-1], error)) from error
