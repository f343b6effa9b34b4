"""Runs one ATen op by torch on the CPU and by its rule (import, emit, compile, run), and compares the results."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from lazytpu.aten import dtypes, registry
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.expansion import tensors
from lazytpu.aten.expansion import values as flat_values
from lazytpu.aten.scalars import KINDS, PackPlan, Scalar
from lazytpu.aten.schema import bind, signature
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of, tensor_type
from lazytpu.lowering.emit import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK

TOLERANCE = {
    torch.float64: (1e-10, 1e-12),
    torch.float32: (2e-5, 2e-6),
    torch.bfloat16: (1.6e-2, 1e-3),
    torch.float16: (2e-3, 1e-4),
    torch.complex64: (2e-5, 2e-6),
    torch.complex128: (1e-10, 1e-12),
}


def on_cpu(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Return the result of an op on torch's CPU, without its warnings: before torch 2.15 an op called through
    `torch.ops` raises no Python warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op(*args, **kwargs)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return the contents of a CPU tensor as a row-major array, bfloat16 included."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray, dtype: str) -> torch.Tensor:
    """Return a CPU tensor with the array's contents."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def run(
    op: OpOverload,
    *args: Any,
    outs: list[torch.Tensor],
    numbers: bool = False,
    rng: tuple[int, int] | None = None,
    **kwargs: Any,
) -> list[torch.Tensor]:
    """Return the op's new results, then the new values of its written arguments, flattened, computed by lazytpu.

    `outs` are tensors with the dtypes and shapes of torch's new results. `numbers=True` passes Python numbers as
    run-time numbers where the rule allows it. `rng` is (seed, offset) for a random op.
    """
    s, bound = signature(op), bind(op, args, kwargs)
    rule = registry.load().get(str(op))
    block = Block()
    b = Builder(block)
    inputs: list[np.ndarray] = []
    values: list[Any] = []
    plan = PackPlan()
    for pack in ("f32", "f64", "i64", "ui64"):
        plan.arguments[pack] = block.insert_arg(tensor_type(pack, (1 << 30,)), len(block.args))

    def operand(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            inputs.append(to_numpy(value))
            return block.insert_arg(tensor_type(dtypes.name(value.dtype), tuple(value.shape)), len(block.args))
        if isinstance(value, list | tuple) and (name in s.tensors or name in s.numbers):
            return [operand(name, v) for v in value]
        varying = rule.numbers | rule.specialized if rule else frozenset()
        if type(value) in KINDS and (name in s.numbers or name in s.tensors or name in varying):
            if numbers and name in varying and (type(value) is not bool or name in rule.numbers):
                values.append(value)
                return Scalar(KINDS[type(value)], None, plan, len(values) - 1)
            return Scalar(KINDS[type(value)], value)
        return value

    operands = {name: operand(name, value) for name, value in bound.items()}
    streams = None
    if rng is not None:
        values.extend(rng)
        streams = (plan.element(b, len(values) - 2, "ui64"), plan.element(b, len(values) - 1, "ui64"))
    metas = [(dtypes.name(t.dtype), tuple(t.shape)) for t in outs]
    outcome = evaluate(b, op, operands, metas, streams)
    results = flat_values(outcome.returns) + flat_values(list(outcome.writes.values()))
    fresh = flat_values(outcome.returns)
    for value, expected in zip(fresh, metas, strict=True):
        assert (dtype_of(value), shape_of(value)) == expected, f"{op}: {value.type}, expected {expected}"
    b.check_outputs = [ok for ok, *_ in b.checks]
    block.add_op(ReturnOp(*results, *b.check_outputs))
    packer = plan.packer()
    packs = dict(zip(packer.packs, packer(values), strict=True))
    for pack, old in list(plan.arguments.items()):
        if pack in packs:
            new = block.insert_arg(tensor_type(pack, packs[pack].shape), old.index)
            old.replace_all_uses_with(new)
        block.erase_arg(old)
    arrays = [packs[p] for p in ("f32", "f64", "i64", "ui64") if p in packs] + inputs
    types = [v.type for v in results] + [v.type for v in b.check_outputs]
    module = ModuleOp([FuncOp("main", ([a.type for a in block.args], types), Region(block))])
    module.verify()
    run_pipeline(module, passes="decompose-attention", verify=False)
    program = Program.compile(emit(module), options=QUICK)
    buffers = program.run([client.to_device(a) for a in arrays])
    for ok, (_, message, *_) in zip(buffers[len(results) :], b.checks, strict=True):
        if not bool(client.to_host(ok)):
            raise IndexError(message)
    return [to_torch(client.to_host(m), dtype_of(v)) for m, v in zip(buffers, results, strict=False)]


def check(op: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that lazytpu's result of `op` equals torch's on the CPU: values, dtypes, shapes; with static and with
    run-time numbers."""
    s = signature(op)
    copies = [clone(a) for a in args], {k: clone(v) for k, v in kwargs.items()}
    reference = on_cpu(op, *copies[0], **copies[1])
    after = bind(op, *copies)
    returned = list(reference or ()) if len(s.returned) != 1 else [reference]
    fresh = tensors([r for r, alias in zip(returned, s.returned, strict=True) if alias is None])
    expected = fresh + tensors([after[name] for name in s.written])
    rule = registry.load().get(str(op))
    for numbers in (False, True) if rule and (rule.numbers or rule.specialized) else (False,):
        got = run(op, *args, outs=fresh, numbers=numbers, **kwargs)
        assert len(got) == len(expected), f"{op}: {len(got)} results, expected {len(expected)}"
        for g, e in zip(got, expected, strict=True):
            assert g.dtype == e.dtype and g.shape == e.shape, f"{op}: {g.dtype} {g.shape}, expected {e.dtype} {e.shape}"
            r, a = TOLERANCE.get(e.dtype, (0.0, 0.0))
            torch.testing.assert_close(
                g, e, rtol=r if rtol is None else rtol, atol=a if atol is None else atol, equal_nan=True
            )


def clone(value: Any) -> Any:
    """Return a copy that an op may write."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [clone(v) for v in value]
    return value
