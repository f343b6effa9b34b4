"""Views from strides: reads and writes against torch's own views, and the ops of the common ones."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from lazytpu.aten import dtypes
from lazytpu.aten.views.access import Base, View, read, write
from lazytpu.aten.views.gather_count import gathers
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import tensor_type
from lazytpu.lowering.emit import emit
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.aten.views.view_model import read_view, run, write_view

Tensor = torch.Tensor


def arange(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(prod(size)).reshape(size).to(dtype)


def channels_last() -> Tensor:
    return arange(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)


def view_of(t: Tensor) -> View:
    return View(tuple(t.shape), t.stride(), int(t.storage_offset()), dtypes.name(t.dtype))


def base_of(t: Tensor) -> Base:
    return Base.of(dtypes.name(t.dtype), tuple(t.shape), t.stride())


def memory_of(t: Tensor, base: Base) -> np.ndarray:
    """Return the storage of t in memory order."""
    flat = torch.as_strided(t, (t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)
    return flat[: base.extent].numpy().reshape(base.memory_shape)


def check_read(whole: Tensor, seen: Tensor) -> list[str]:
    """Read `seen` from the storage of `whole`; return the names of the ops."""
    base = base_of(whole)
    got, ops = read_view(memory_of(whole, base), base, view_of(seen))
    np.testing.assert_array_equal(got, seen.numpy())
    return ops


def check_write(whole: Tensor, seen: Tensor) -> list[str]:
    """Write through `seen`, a view on the storage of `whole`; return the names of the ops."""
    base = base_of(whole)
    memory = memory_of(whole, base).copy()
    value = arange(*seen.shape).add(1000).to(seen.dtype).numpy()
    got, ops = write_view(memory, base, view_of(seen), value)
    unit = seen.itemsize
    raw = memory.reshape(-1).view(np.uint8)
    address = np.full(tuple(seen.shape), seen.storage_offset())
    for dim, stride in enumerate(seen.stride()):
        address += (np.arange(seen.shape[dim]) * stride).reshape([-1 if d == dim else 1 for d in range(seen.dim())])
    order = view_of(seen).order  # in which the last one stays
    for place, number in zip(address.transpose(order).ravel(), value.transpose(order).ravel(), strict=True):
        raw[place * unit : (place + 1) * unit] = np.frombuffer(number.tobytes(), np.uint8)
    np.testing.assert_array_equal(got, memory)
    return ops


# The chains of views in scripts, and the ops of their reads. Only overlapping and interleaved strides take more than
# slices.
CHAINS: dict[str, tuple[Tensor, Callable[[Tensor], Tensor], str]] = {
    "whole": (arange(4, 6), lambda x: x, ""),
    "t": (arange(4, 6), lambda x: x.t(), "transpose"),
    "permute": (arange(2, 3, 4, 5), lambda x: x.permute(2, 0, 3, 1), "transpose"),
    "permute with 1": (arange(4, 1, 6), lambda x: x.permute(2, 1, 0), "transpose"),
    "flatten": (arange(2, 3, 4), lambda x: x.view(-1), "reshape"),
    "rows": (arange(2, 3, 4), lambda x: x.view(-1, 4), "reshape"),
    "unflatten": (arange(24), lambda x: x.view(2, 3, 4), "reshape"),
    "unsqueeze": (arange(2, 3), lambda x: x[:, None], "reshape"),
    "squeeze": (arange(2, 1, 3), lambda x: x.squeeze(1), "reshape"),
    "columns": (arange(8, 6), lambda x: x[:, 2:5], "slice"),
    "steps": (arange(10, 7), lambda x: x[1:9:3, ::2], "slice"),
    "crop of three": (arange(5, 6, 7), lambda x: x[1:4, 2:5, 3:6], "slice"),
    "row": (arange(4, 6), lambda x: x[2], "slice reshape"),
    "row kept": (arange(4, 6), lambda x: x[2:3], "slice"),
    "select": (arange(4, 5, 6), lambda x: x[:, 2], "slice reshape"),
    "element": (arange(4, 5), lambda x: x[2, 3], "slice reshape"),
    "element kept": (arange(4, 5), lambda x: x[2:3, 3:4], "slice"),
    "expand": (arange(4, 1, 6), lambda x: x.expand(4, 5, 6), "broadcast_in_dim"),
    "expand in front": (arange(6), lambda x: x.expand(4, 6), "broadcast_in_dim"),
    "expand number": (torch.tensor(3.0), lambda x: x.expand(4, 6), "broadcast_in_dim"),
    "expand of select": (arange(6), lambda x: x[3].expand(4), "slice broadcast_in_dim"),
    "expand, slice": (arange(4, 1, 6), lambda x: x.expand(4, 5, 6)[:, 1:3, ::2], "slice broadcast_in_dim"),
    "expand of t": (arange(4, 6), lambda x: x.t()[:, None].expand(6, 3, 4), "transpose broadcast_in_dim"),
    "narrow, view": (arange(8, 6), lambda x: x.narrow(0, 2, 4).view(2, 2, 6), "slice reshape"),
    "narrow of t": (arange(8, 6), lambda x: x[:, 2:5].t()[1:], "slice transpose"),
    "rows, flattened": (arange(4, 6, 5), lambda x: x[1:3].view(-1), "slice reshape"),
    "cut of flat": (arange(4, 6), lambda x: x.view(-1)[3:17], "reshape slice"),
    "chunk": (arange(4, 12), lambda x: x.chunk(3, 1)[1], "slice"),
    "qkv heads": (arange(2, 5, 24), lambda x: x[..., 8:16].view(2, 5, 2, 4).transpose(1, 2), "slice reshape transpose"),
    "qkv unbind": (arange(2, 5, 3, 4, 8), lambda x: x.permute(2, 0, 3, 1, 4)[1], "slice transpose reshape"),
    "heads": (arange(2, 5, 32), lambda x: x.view(2, 5, 4, 8).transpose(1, 2)[:, 1:3], "slice reshape transpose"),
    "one of heads": (arange(2, 5, 24), lambda x: x.view(2, 5, 3, 2, 4)[:, :, 1], "slice reshape"),
    "half of heads": (arange(2, 5, 24), lambda x: x.view(2, 5, 6, 4)[..., :2], "reshape slice"),
    "rope even": (arange(2, 3, 8), lambda x: x[..., ::2], "slice"),
    "rope pairs": (arange(2, 3, 8), lambda x: x.view(2, 3, 4, 2)[..., 1], "slice"),
    "tail crop": (arange(5, 6), lambda x: x[1:, 1:], "slice"),
    "movedim, slice": (arange(3, 4, 5, 6), lambda x: x.movedim(0, 2)[1:3, :, 1:, ::2], "slice transpose"),
    "pixel shuffle": (arange(8, 3, 3), lambda x: x.view(2, 2, 2, 3, 3).permute(0, 3, 1, 4, 2), "reshape transpose"),
    "channels last": (channels_last(), lambda x: x, "transpose"),
    "channels last, t": (channels_last(), lambda x: x.permute(0, 2, 3, 1), ""),
    "channels last, c": (channels_last(), lambda x: x[:, 2:5], "slice transpose"),
    "channels last, crop": (channels_last(), lambda x: x[:, :, 1:3, 1:3], "slice transpose"),
    "channels last, step": (channels_last(), lambda x: x[:, :, ::2, ::2], "slice transpose"),
    "channels last, image": (channels_last(), lambda x: x[1], "slice transpose reshape"),
    "diagonal": (arange(5, 7), lambda x: x.diagonal(1), "reshape slice"),
    "diagonals": (arange(3, 5, 5), lambda x: x.diagonal(0, 1, 2), "reshape slice"),
    "diagonal below": (arange(3, 4, 7), lambda x: x.diagonal(-1, 1, 2), "reshape slice"),
    "diagonal step": (arange(3, 5, 5), lambda x: x.diagonal(0, 1, 2)[:, ::2], "reshape slice"),
    "diagonal outer": (arange(4, 5, 4), lambda x: x.diagonal(0, 0, 2), "transpose reshape slice transpose"),
    "diagonal twice": (arange(4, 4, 4, 4), lambda x: x.diagonal(0, 0, 2).diagonal(0, 0, 1), "transpose reshape slice"),
    "windows": (arange(12), lambda x: x.unfold(0, 3, 3), "reshape"),
    "windows apart": (arange(20), lambda x: x.unfold(0, 3, 5), "reshape slice"),
    "shift": (arange(4, 9), lambda x: x.as_strided((4, 5), (8, 1), 4), "reshape slice reshape slice"),
    "shifts": (arange(2, 5, 9), lambda x: x.as_strided((2, 5, 5), (45, 8, 1), 4), "reshape slice reshape slice"),
    "windows over": (arange(12), lambda x: x.unfold(0, 4, 2), "slice reshape " * 4 + "concatenate transpose"),
    "interleaved": (arange(16), lambda x: x.as_strided((2, 3), (3, 2), 0), "slice reshape slice reshape concatenate"),
    "real": (arange(4, 6, dtype=torch.complex64), lambda x: x.real, "real"),
    "imag of row": (arange(4, 6, dtype=torch.complex64), lambda x: x[1].imag, "slice reshape imag"),
    "bytes": (arange(4, 6), lambda x: x.view(torch.int32), "bitcast_convert"),
    "0-d": (torch.tensor(3.0), lambda x: x.view(1, 1), "reshape"),
    "none": (arange(0, 3), lambda x: x.t(), ""),
    "none of some": (arange(4, 3), lambda x: x[2:2], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_read(name: str) -> None:
    tensor, chain, expected = CHAINS[name]
    assert " ".join(check_read(tensor, chain(tensor))) == expected


@pytest.mark.parametrize("name", CHAINS)
def test_write(name: str) -> None:
    tensor, chain, _ = CHAINS[name]
    check_write(tensor, chain(tensor))


def test_whole_overwrite_is_the_value() -> None:
    base = Base("f32", (4, 6), (6, 1))
    block = Block(arg_types=[tensor_type("f32", (4, 6))] * 2)
    b = Builder(block)
    assert write(b, block.args[0], base, View((4, 6), (6, 1), 0, "f32"), block.args[1]) is block.args[1]
    assert not block.ops


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("whole", ""),
        ("t", "transpose"),
        ("flatten", "reshape"),
        ("columns", "dynamic_update_slice"),
        ("row", "reshape dynamic_update_slice"),
        ("rope even", "pad pad select"),
        ("qkv heads", "transpose reshape dynamic_update_slice"),
        ("channels last", "transpose"),
        ("expand", "slice"),
        ("expand number", "slice reshape"),
    ],
)
def test_write_ops(name: str, ops: str) -> None:
    tensor, chain, _ = CHAINS[name]
    assert " ".join(check_write(tensor, chain(tensor))) == ops


def test_on_xla() -> None:
    """All chains, read and written by one compiled program."""
    block, inputs, results, expected = Block(), [], [], []
    b = Builder(block)

    def argument(array: np.ndarray, dtype: str) -> SSAValue:
        inputs.append(array)
        return block.insert_arg(tensor_type(dtype, array.shape), len(block.args))

    overlapping = (arange(100), lambda x: x.as_strided((40, 40), (1, 1), 3), "")
    for tensor, chain, _ in [*CHAINS.values(), overlapping]:
        base, view = base_of(tensor), view_of(chain(tensor))
        memory = memory_of(tensor, base)
        value = arange(*view.size).add(1000).to(chain(tensor).dtype).numpy()
        stored, new = argument(memory, base.dtype), argument(value, view.dtype)
        results += [read(b, stored, base, view), write(b, stored, base, view, new)]
        expected += [read_view(memory, base, view)[0], write_view(memory, base, view, value)[0]]
    block.add_op(ReturnOp(*results))
    types = [a.type for a in block.args], [r.type for r in results]
    module = ModuleOp([FuncOp("main", types, Region(block))])
    module.verify()
    program = Program.compile(emit(module), name="views")
    for got, right in zip(program.run([client.to_device(a) for a in inputs]), expected, strict=True):
        np.testing.assert_array_equal(client.to_host(got), right)


@pytest.mark.parametrize("size", [(3, 4, 5), (2, 1, 3), (7,), (), (2, 0, 3), (1, 1)])
def test_base_round_trip(size: tuple[int, ...]) -> None:
    x = arange(*size)
    for order in {tuple(np.random.default_rng(i).permutation(len(size)).tolist()) for i in range(4)}:
        t = x.permute(order)
        base = base_of(t)
        block = Block(arg_types=[tensor_type("f32", t.shape)])
        b = Builder(block)
        got, _ = run(block, base.to_logical(b, base.to_memory(b, block.args[0])), [t.numpy()])
        np.testing.assert_array_equal(got, t.numpy())
        assert check_read(t, t) is not None
        assert base.extent == t.numel()


def test_base_of_strides_with_gaps_is_flat() -> None:
    base = Base.of("f32", (2, 3), (5, 1))
    assert base == Base("f32", (8,), (1,))
    assert base.memory_shape == (8,)
    assert Base.of("f32", (2, 1, 3), (3, 99, 1)).memory_shape == (1, 2, 3)


DTYPE_PAIRS = [
    (torch.float32, torch.int32, (3, 4)),
    (torch.float32, torch.uint8, (3, 4)),
    (torch.uint8, torch.float32, (3, 8)),
    (torch.int16, torch.float64, (3, 8)),
    (torch.complex64, torch.float32, (3, 4)),
    (torch.float32, torch.complex64, (3, 4)),
    (torch.complex64, torch.int64, (3, 4)),
    (torch.int16, torch.complex64, (3, 8)),
    (torch.complex64, torch.uint8, (2, 3)),
    (torch.complex128, torch.complex64, (2, 3)),
    (torch.bool, torch.uint8, (3, 4)),
    (torch.bool, torch.int8, (3, 4)),
    (torch.uint8, torch.bool, (3, 4)),
    (torch.bool, torch.int16, (3, 4)),
]


@pytest.mark.parametrize(("inner", "outer", "size"), DTYPE_PAIRS)
def test_dtype_views(inner: torch.dtype, outer: torch.dtype, size: tuple[int, ...]) -> None:
    x = arange(*size).remainder(2 if torch.bool in (inner, outer) else 100).to(inner)
    seen = x.view(outer)
    for view in (seen, seen[1:], seen[..., 1:], seen[:, 0], seen.t()):
        check_read(x, view)
        if outer != torch.bool and inner != torch.bool:
            check_write(x, view)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int64, torch.complex64, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = arange(10, 6).to(dtype)
    for view in (x[::2], x[:, 1::3], x.t()[::2], x.view(-1).unfold(0, 3, 7), x.view(-1).unfold(0, 60, 1)):
        check_read(x, view)
        check_write(x, view)
    flags = arange(10, 6).remainder(3).eq(0)
    check_read(flags, flags[:, 1::3].t())


def test_real_view_of_complex_writes_only_its_part() -> None:
    x = arange(4, 6, dtype=torch.complex64)
    check_write(x, x[:, 1:3].imag)
    check_write(x, torch.view_as_real(x)[1])
    check_read(x, torch.view_as_real(x).transpose(0, 2))


def test_view_past_its_storage() -> None:
    block = Block(arg_types=[tensor_type("f32", (4,))])
    with pytest.raises(ValueError, match="reaches element 5 of a storage of 4 elements"):
        read(Builder(block), block.args[0], Base("f32", (4,), (1,)), View((2,), (2,), 3, "f32"))


def test_gathers_are_counted() -> None:
    x = arange(100)
    before = gathers()
    check_read(x, x.unfold(0, 4, 2))
    assert gathers() == before
    check_read(x, x.as_strided((40, 40), (1, 1), 3))
    assert gathers() == before + 1
    check_write(x, x.as_strided((40, 40), (1, 1), 3))
    check_write(arange(2, 50), arange(2, 50).as_strided((2, 20, 20), (50, 1, 1)))


@st.composite
def storages(draw: st.DrawFn) -> Tensor:
    size = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    return arange(*size).permute(draw(st.permutations(range(len(size)))))


KINDS = ["permute", "slice", "select", "unsqueeze", "expand", "split", "merge", "diagonal", "unfold"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A storage and a view of it, from a few of torch's own view ops."""
    storage = seen = draw(storages())
    for _ in range(draw(st.integers(1, 5))):
        dims = seen.dim()
        kind = draw(st.sampled_from(KINDS))
        dim = draw(st.integers(0, max(dims - 1, 0)))
        n = seen.shape[dim] if dims else 0
        if kind == "permute":
            seen = seen.permute(draw(st.permutations(range(dims))))
        elif kind == "unsqueeze" and dims < 6:
            seen = seen.unsqueeze(draw(st.integers(0, dims)))
        elif kind == "expand" and dims < 6:
            seen = seen.expand(draw(st.integers(1, 3)), *(3 if k == 1 else k for k in seen.shape))
        elif n == 0:
            continue
        elif kind == "slice":
            start = draw(st.integers(0, n - 1))
            seen = seen.narrow(dim, start, draw(st.integers(1, n - start)))
            seen = seen[(slice(None),) * dim + (slice(None, None, draw(st.integers(1, 3))),)]
        elif kind == "select":
            seen = seen.select(dim, draw(st.integers(0, n - 1)))
        elif kind == "split" and n in (4, 6, 9):
            seen = seen.unflatten(dim, (2, n // 2) if n != 9 else (3, 3))
        elif kind == "merge" and dims > 1:
            try:
                seen = seen.view(*seen.shape[: max(dim - 1, 0)], -1, *seen.shape[max(dim, 1) + 1 :])
            except RuntimeError:
                continue
        elif kind == "diagonal" and dims > 1:
            second_dim = draw(st.sampled_from([d for d in range(dims) if d != dim]))
            seen = seen.diagonal(0, dim, second_dim)
        elif kind == "unfold":
            window = draw(st.integers(1, n))
            seen = seen.unfold(dim, window, draw(st.integers(1, 3)))
    return storage, seen


@settings(max_examples=150, deadline=None)
@given(chains())
def test_random_chains(pair: tuple[Tensor, Tensor]) -> None:
    storage, seen = pair
    if seen.numel() < 2000:
        check_read(storage, seen)
        check_write(storage, seen)


@st.composite
def strided(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A storage and an arbitrary `as_strided` view of it."""
    storage = draw(storages())
    size, stride, room = [], [], storage.numel() - 1
    offset = draw(st.integers(0, room))
    room -= offset
    for _ in range(draw(st.integers(0, 4))):
        n = draw(st.integers(1, 5))
        t = draw(st.integers(0, 12 if n == 1 else room // (n - 1)))
        room -= t * (n - 1)
        size.append(n)
        stride.append(t)
    return storage, storage.as_strided(size, stride, offset)


@settings(max_examples=200, deadline=None)
@given(strided())
def test_random_strides(pair: tuple[Tensor, Tensor]) -> None:
    check_read(*pair)
    check_write(*pair)
