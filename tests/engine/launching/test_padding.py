"""Padded values: every read returns the true elements without padding."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lazytpu
from lazytpu.engine.launching.out_of_memory import OutOfMemoryError
from lazytpu.engine.launching.padding import fitted
from lazytpu.engine.launching.uploads import UPLOADS
from lazytpu.engine.memory.alive import LiveValue, MemoryReport
from lazytpu.frontend.tensors import value_of
from lazytpu.runtime.buffers import padded
from lazytpu.runtime.buffers.buffer import MEMORY, Buffer
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.buffers.repadding import cut, memory_shape, moved
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.runtime.jobs import multiprocess
from lazytpu.runtime.xla import client
from tests.padding import buffer_of, pad


@pytest.fixture(autouse=True)
def nothing_is_known_of_uploads() -> Iterator[None]:
    UPLOADS.forget()
    yield
    UPLOADS.forget()


def pair(rows: int = 3, columns: int = 5, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix on the CPU, and an upload of it that is padded to 4 rows and 8 columns."""
    x = torch.arange(rows * columns).reshape(rows, columns).to(dtype)
    return x, pad(x.to("tpu"), {0: 4, 1: 8})


def computed(x: torch.Tensor) -> torch.Tensor:
    """The same values on the device, computed by a program and padded to 4 rows and 8 columns."""
    return pad(x.to("tpu").add(0), {0: 4, 1: 8})


def stored(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    return torch.load(io.BytesIO(file.getvalue()))


def resized(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    return y.resize_(x.numel(), 1)


def grown(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.resize_(x.numel() + 2)[x.numel() :] = 0
    return y


def overwritten(write: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], torch.Tensor]:
    def written(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x

    return written


READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cpu": torch.Tensor.cpu,
    "tolist": lambda x: torch.tensor(x.tolist()).reshape(x.shape),
    "item": lambda x: torch.tensor(x.sum().item()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": stored,
    "deepcopy": copy.deepcopy,
    "clone": torch.clone,
    "dlpack": lambda x: torch.from_dlpack(x) if x.device.type == "cpu" else torch.from_dlpack(x.cpu()),
    "untyped storage": lambda x: torch.tensor(x.untyped_storage().tolist()),
    "row": lambda x: x[-1:],
    "columns": lambda x: x[:, 1::2],
    "transposed": torch.t,
    "transposed and copied": lambda x: x.t().contiguous(),
    "flat": lambda x: x.reshape(-1),
    "as_strided": lambda x: x.as_strided((2, 3), (3, 1), 2) if x.numel() > 8 else x,
    "overlapping": lambda x: x.as_strided((2, 3), (1, 1), 0) if x.numel() > 3 else x,
    "bits": lambda x: x.view(torch.uint8),
    "wider": lambda x: x.to(torch.float64),
    "halves": lambda x: x.to(torch.bfloat16).float(),
    "sum": torch.sum,
    "product with itself": lambda x: x.float() @ x.float().t(),
    "cumulative": lambda x: x.cumsum(1),
    "sorted": lambda x: x.sort(1, descending=True).values,
    "joined": lambda x: torch.cat([x, x], 1),
    "resize": resized,
    "grown": grown,
    "added to in place": overwritten(lambda x: x.add_(1)),
    "filled in part": overwritten(lambda x: x[:, :1].fill_(7)),
    "copied to": overwritten(lambda x: x.copy_(x.flip(1))),
    "written by index": overwritten(lambda x: x.index_fill_(1, torch.zeros(1, dtype=torch.int64, device=x.device), 3)),
    "storage of another tensor": lambda x: x.new_empty(0).set_(x.untyped_storage()).sum(),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 8), (1, 1), (3, 1)])
def test_every_read_returns_the_true_elements(read: str, rows: int, columns: int) -> None:
    ours, (x, uploaded) = READS[read], pair(rows, columns)
    for y in (uploaded, computed(x)):
        expected, got = ours(x.clone()), ours(y)
        assert tuple(got.stride()) == tuple(expected.stride()) and got.shape == expected.shape
        assert_close(got.cpu(), expected)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_values_stay_empty(shape: tuple[int, int]) -> None:
    x, y = pair(*shape)
    assert_close(y.cpu(), x)
    assert_close(y.sum().cpu(), x.sum())
    assert torch.cat([y, y.new_ones(1, shape[1])]).tolist() == torch.cat([x, x.new_ones(1, shape[1])]).tolist()


DTYPES = [
    torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_dtypes_are_padded_and_poisoned(dtype: torch.dtype) -> None:
    x, y = pair(dtype=dtype)
    assert_close(y.cpu(), x, rtol=0, atol=0)
    assert_close(y.clone().t().contiguous().cpu(), x.t().contiguous(), rtol=0, atol=0)
    beyond = np.array(client.to_host(buffer_of(y).kept))[3:]
    kind = beyond.dtype.kind
    assert beyond.size == 8
    if kind in "iu":
        assert (beyond == np.iinfo(beyond.dtype).max).all()
    else:
        assert beyond.all() if kind == "b" else np.isnan(beyond.astype(np.complex128)).all()


def test_permuted_memory_is_padded() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    y = pad(x.to("tpu"), {1: 5, 2: 8})
    assert y.stride() == x.stride()
    assert_close(y.cpu(), x)
    assert_close((y * 2).cpu(), x * 2)


def test_merged_dimension_is_padded() -> None:
    x = torch.arange(12.0 * 5).reshape(12, 5)
    y = pad(x.to("tpu"), (((4, 4), (8, 3)), 7))
    assert client.to_host(buffer_of(y).kept).shape == (32, 7)
    assert_close(y.cpu(), x)
    assert_close((y + 1).cpu(), x + 1)


def test_printed_value_has_no_padding() -> None:
    x, y = pair()
    assert str(y.cpu()) == str(x)
    assert str(y).replace(", device='tpu:0'", "") == str(x)


def test_jax_array_has_the_true_sizes_and_keeps_its_memory() -> None:
    x, y = pair()
    array = lazytpu.interop.to_jax(y)
    y.add_(1)
    lazytpu.mark_step()
    assert np.array_equal(np.array(array), x.numpy())
    assert_close(y.cpu(), x + 1)


def test_data_ptr_and_nbytes_ignore_padding() -> None:
    x, y = pair()
    assert y.data_ptr() == y.view(-1).data_ptr() and y[1:].data_ptr() - y.data_ptr() == y.stride(0) * 4
    assert y.nbytes == x.nbytes and y.untyped_storage().nbytes() == x.untyped_storage().nbytes()


def test_concurrent_reads_return_the_true_elements() -> None:
    x, _ = pair()
    y = computed(x)
    start, seen = threading.Barrier(4), list[torch.Tensor]()

    def ask() -> None:
        start.wait()
        seen.append((y * 2).cpu())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    for result in seen:
        assert_close(result, x * 2)


def test_memory_counts_padded_and_exact_arrays() -> None:
    before = MEMORY.live
    _, y = pair()
    buffer = buffer_of(y)
    assert buffer.nbytes == MEMORY.live - before == 4 * 4 * 8
    buffer.outcome = object()  # as if a program had computed it
    assert buffer.array.shape == (3, 5)
    assert buffer.copied and buffer.nbytes == MEMORY.live - before == 4 * (4 * 8 + 3 * 5)
    buffer.release()
    assert buffer.gone() and buffer.nbytes == 0 and MEMORY.live == before


def test_memory_report_has_the_padding() -> None:
    _, y = pair()
    report = lazytpu.memory()
    mine = [value for value in report.values if value.padding]
    assert [(v.shape, v.nbytes, v.padding) for v in mine] == [((3, 5), 128, 128 - 60)]
    assert report.padding == report.as_dict()["padding"] == 68 and "(68 B of it padding, " in str(report)
    assert "inputs, 68 B padding" in str(mine[0]) or "other tensors, 68 B padding" in str(mine[0])
    assert y is not None


def test_out_of_memory_error_has_the_padding() -> None:
    alive = LiveValue(4000, "inputs", None, "float32", (10, 10), "upload", None, None, 3600)
    report = MemoryReport((alive,), 4000, 96, 4096, {})
    error = OutOfMemoryError(OutOfMemory("the copy", "RESOURCE_EXHAUSTED"), "upload", report)
    assert "(inputs 3.91 KiB, of which 3.52 KiB padding)" in str(error)
    assert any(advice.startswith("padding takes 3.52 KiB") for advice in error.advice)


def test_donated_array_of_two_is_dropped() -> None:
    x, y = pair()
    for name in ("plain", "kept"):
        buffer = buffer_of(pad(y.clone().add_(0), {0: 4, 1: 8}))
        assert buffer.array is not None
        getattr(buffer, name).delete()
        assert not buffer.taken() and buffer.existing is not None
        assert np.array_equal(buffer.fetch(), x.numpy())
        assert buffer.nbytes == buffer.existing.nbytes


def test_overwritten_value_is_donated_and_its_copy_kept() -> None:
    x, y = pair()
    view, before = y[:2], y.detach().clone()
    y.mul_(2)
    lazytpu.mark_step()
    assert_close(before.cpu(), x)
    assert_close(view.cpu(), x[:2] * 2)
    assert not isinstance(value_of(y).buffer, PaddedBuffer)


def test_fitted_returns_an_array_of_these_sizes() -> None:
    buffer = buffer_of(pair()[1])
    assert fitted(buffer, (4, 8)) is buffer.kept
    plain = value_of(torch.ones(2, 2).to("tpu")).buffer
    assert fitted(plain, (2, 2)) is plain.array


def test_fitted_moves_between_buckets() -> None:
    x, y = pair()
    for memory in [(4, 10), (3, 5), (8, 6), (3, 8)]:
        array = fitted(buffer_of(y), memory)
        assert array.shape == memory
        assert np.array_equal(cut(client.to_host(array), memory, (3, 5)), x.numpy())
    computed = value_of(y * 1)
    assert computed.recorder is not None
    computed.recorder.cut()
    array = fitted(computed.buffer, (4, 8))
    assert np.array_equal(cut(client.to_host(array), (4, 8), (3, 5)), x.numpy())


def test_growing_value_compiles_once_for_each_bucket() -> None:
    x = torch.zeros(1, 32).to("tpu")
    array = fitted(value_of(x).buffer, (1, 32))
    lazytpu.reset_metrics()
    moved(array, (1, 32), (1, 40), (1, 31))
    before = lazytpu.metrics()["cache_misses"] + lazytpu.metrics()["cache_hits"]
    for size in range(20, 31):
        moved(array, (1, 32), (1, 40), (1, size))
    assert lazytpu.metrics()["cache_misses"] + lazytpu.metrics()["cache_hits"] == before


def test_too_small_sizes_in_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=r"an array of sizes \(2, 8\) cannot hold a value of sizes \(3, 5\)"):
        fitted(buffer_of(pair()[1]), (2, 8))


def test_memory_shape_multiplies_merged_dimensions() -> None:
    assert memory_shape((3, ((4, 4), (8, 3)), 7)) == (3, 32, 7)


def test_joining_a_job_keeps_padded_values() -> None:
    x, y = pair()
    buffer = buffer_of(y)
    mine = [(name, values) for owner, name, values in multiprocess._held() if owner is buffer]
    assert [name for name, _ in mine] == ["kept"]
    assert np.array_equal(cut(mine[0][1], buffer.memory, buffer.shape), x.numpy())


@pytest.mark.parametrize("mode", ["lazy", "fused", "strict", "debug"])
def test_all_modes_see_the_true_elements(mode: str) -> None:
    x, _ = pair()
    with lazytpu.mode(mode):
        y = computed(x)
        y[1:].mul_(2)
        z = torch.cat([y, y.flip(0)], 1)
        lazytpu.mark_step()
    x[1:].mul_(2)
    assert_close(z.cpu(), torch.cat([x, x.flip(0)], 1))
    assert_close(y.cpu(), x)


def test_failed_program_leaves_a_padded_value_unchanged() -> None:
    x, _ = pair()
    y = computed(x)
    index = torch.tensor([7]).to("tpu")
    wrong = y[index]
    with pytest.raises(IndexError):
        wrong.cpu()
    assert_close(y.cpu(), x)
    assert_close((y + 1).cpu(), x + 1)


def test_padding_is_zero_without_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded, "POISON", False)
    _, y = pair()
    assert not np.array(client.to_host(buffer_of(y).kept))[3:].any()


def test_uploads_are_exact_at_sizes_of_exact_programs() -> None:
    def upload(*shape: int) -> Buffer:
        return value_of(torch.ones(shape).to("tpu")).buffer

    with lazytpu.options(buckets="auto"):
        full, last = upload(100, 3), upload(17, 3)  # batches of a first epoch
        assert (type(full), type(last)) == (Buffer, Buffer)
        fitted(last, (20, 3))
        assert isinstance(upload(17, 3), PaddedBuffer)
        assert type(upload(100, 3)) is Buffer
        another = upload(101, 3)
        assert isinstance(another, PaddedBuffer)
        assert another.array.shape == (101, 3)
        assert type(upload(101, 3)) is Buffer
        fitted(upload(101, 3), (112, 3))
        assert isinstance(upload(101, 3), PaddedBuffer)


def test_uploads_are_padded_after_a_padded_use() -> None:
    with lazytpu.options(buckets="auto"):
        first = torch.ones(4, 13).to("tpu")
        assert type(value_of(first).buffer) is Buffer
        fitted(value_of(first).buffer, (4, 14))
        second = torch.arange(36.0).reshape(4, 9).to("tpu")
        assert client.to_host(buffer_of(second).kept).shape == (4, 10)
        assert_close(second.cpu(), torch.arange(36.0).reshape(4, 9))
        fitted(value_of(second).buffer, (4, 64))  # as by a program with few bounds
        again = torch.zeros(4, 11)
        assert client.to_host(buffer_of(again.to("tpu")).kept).shape == (4, 64)
        lazytpu.mark_dynamic(again, 1, max=50)
        assert client.to_host(buffer_of(again.to("tpu")).kept).shape == (4, 50)
        assert type(value_of(torch.ones(5, 9).to("tpu")).buffer) is Buffer
        assert type(value_of(torch.ones(4, 9, dtype=torch.int64).to("tpu")).buffer) is Buffer
    with lazytpu.options(buckets="off"):
        assert type(value_of(torch.ones(4, 9).to("tpu")).buffer) is Buffer
