"""Parameters in the memory layout preferred by their program, which no read or other program can observe."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.passes import ModulePass

import lazytpu
from lazytpu import wiring
from lazytpu.frontend.tensors import value_of
from lazytpu.ir.types import shape_of
from lazytpu.passes.layout.assign_layout import LAYOUT
from lazytpu.passes.mark_donation import SUCCESSOR
from lazytpu.passes.registry import registered
from lazytpu.runtime.buffers.buffer import Buffer
from lazytpu.runtime.buffers.custom_layout import CustomLayoutBuffer, relayout
from lazytpu.runtime.cache import programs
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from tests.engine.errors.test_faults import Failing

ORDER = "{0,1}"
SHAPE = (3, 5)


class ColumnsFirstPass(ModulePass):
    """Give each matrix updated in place a column-major layout, as `assign-layout` does for convolution kernels."""

    name = "columns-first"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        main = next(function for function in op.ops if isinstance(function, FuncOp))
        returned = main.body.block.last_op
        assert isinstance(returned, ReturnOp)
        of_arguments = [dict(a.data) for a in main.arg_attrs or ()]
        of_results = [dict(a.data) for a in main.res_attrs or [DictionaryAttr({})] * len(returned.operands)]
        for argument, attributes in zip(main.body.block.args, of_arguments, strict=False):
            successor = attributes.get(SUCCESSOR)
            if isinstance(successor, IntegerAttr) and len(shape_of(argument)) == 2:
                attributes[LAYOUT] = of_results[successor.value.data][LAYOUT] = StringAttr(ORDER)
        main.arg_attrs = ArrayAttr(map(DictionaryAttr, of_arguments))
        main.res_attrs = ArrayAttr(map(DictionaryAttr, of_results))


@pytest.fixture
def laid() -> Iterator[None]:
    with registered(ColumnsFirstPass, phase="layout"):
        yield


pytestmark = pytest.mark.usefixtures("laid")


class Training:
    """A linear layer trained with momentum, which has two matrices: the weight and its momentum."""

    loss: torch.Tensor
    kept: torch.Tensor

    def __init__(self, device: str = "tpu") -> None:
        self.layer = torch.nn.Linear(SHAPE[1], SHAPE[0], device=device)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(15.0).reshape(SHAPE) / 15)
            self.layer.bias.fill_(0.5)
        self.x = torch.arange(10.0).reshape(2, 5).to(device)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.01, momentum=0.9)

    def step(self) -> torch.Tensor:
        loss = self.layer(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def steps(self, count: int) -> torch.Tensor:
        """Run `count` steps and return the weight."""
        for _ in range(count):
            self.step()
            lazytpu.mark_step()
        return self.layer.weight.detach().cpu()

    @property
    def buffer(self) -> Buffer:
        """The buffer of the weight."""
        buffer = value_of(self.layer.weight).buffer
        assert isinstance(buffer, Buffer)
        return buffer

    @property
    def laid(self) -> CustomLayoutBuffer:
        """The buffer of the weight, checked to be in the custom layout."""
        buffer = self.buffer
        assert isinstance(buffer, CustomLayoutBuffer) and buffer.kept is not None and buffer.layout == ORDER
        return buffer


def test_steps_equal_the_cpu_and_update_the_array_in_place() -> None:
    training = Training()
    lazytpu.sync()
    compiles, places = [lazytpu.metrics()["compiles"]], list[int]()
    for _ in range(4):
        training.step()
        lazytpu.mark_step()
        compiles.append(lazytpu.metrics()["compiles"])
        places.append(client.address(training.laid.kept))
    assert [b - a for a, b in pairwise(compiles)] == [1, 0, 0, 0]
    assert places[0] == places[1] == places[2] == places[3]  # donated, never copied
    assert not training.laid.copied
    assert_close(training.layer.weight.detach().cpu(), Training("cpu").steps(4))
    assert not training.laid.copied  # reading copies nothing on the device
    assert client.to_host(training.laid.kept, copy=False).strides == (4, 12)
    assert training.laid.array.shape == SHAPE and client.to_host(training.laid.array).strides == (20, 4)


def test_layout_is_invisible_to_tensors() -> None:
    training, reference = Training(), Training("cpu")
    assert_close(training.steps(2), reference.steps(2))
    weight = training.layer.weight
    assert (weight.stride(), weight.is_contiguous()) == ((5, 1), True)
    file = io.BytesIO()
    torch.save(training.layer.state_dict(), file)
    file.seek(0)
    assert_close(torch.load(file)["weight"].cpu(), reference.layer.weight.detach())
    assert_close(weight.detach().t()[1:, ::2].cpu(), reference.layer.weight.detach().t()[1:, ::2])
    assert weight[1, 2].item() == pytest.approx(reference.layer.weight[1, 2].item())


def test_other_programs_read_and_write_the_parameter() -> None:
    training, reference = Training(), Training("cpu")
    for run in (training, reference):
        run.steps(2)
        with torch.no_grad():
            run.loss = run.layer(run.x).sum()
            run.kept = run.layer.weight.clone()
        lazytpu.mark_step()
    assert training.laid.copied
    for run in (training, reference):
        run.steps(1)
        with torch.no_grad():
            run.layer.weight.view(-1)[3] = 5.0
            run.layer.weight[2].mul_(2.0)
        lazytpu.mark_step()
    assert_close(training.loss.cpu(), reference.loss)
    assert_close(training.kept.cpu(), reference.kept)
    assert_close(training.steps(2), reference.steps(2))
    assert not training.laid.copied  # until another program reads it


def test_memory_counts_both_arrays() -> None:
    training = Training()
    training.steps(2)
    lazytpu.sync()

    def counted() -> tuple[int, int]:
        gc.collect()
        report = lazytpu.memory()
        assert report.allocated == lazytpu.metrics()["live_bytes"]
        (value,) = [value for value in report.values if value.name == "weight" and value.category == "parameters"]
        assert value.shape == SHAPE
        return report.allocated, value.nbytes

    before, nbytes = counted()
    assert nbytes == 60
    assert training.laid.array is not None
    assert counted() == (before + nbytes, 2 * nbytes)
    training.steps(1)
    assert counted() == (before, nbytes)


@pytest.mark.parametrize("copied", [False, True])
def test_failed_step_leaves_the_parameter_unchanged(monkeypatch: pytest.MonkeyPatch, copied: bool) -> None:
    training = Training()
    before = training.steps(3)
    assert not copied or training.laid.array is not None
    with monkeypatch.context() as patch:
        Failing(patch)
        training.step()
        with pytest.raises(RunError, match="on fire"):
            lazytpu.mark_step()
    assert torch.equal(training.layer.weight.detach().cpu(), before)
    assert_close(training.steps(1), Training("cpu").steps(4))


def test_array_donated_to_a_failed_run_is_released() -> None:
    plain = client.to_device(np.arange(6.0).reshape(2, 3))
    custom = relayout(plain, None, ORDER)
    buffer = CustomLayoutBuffer(custom, 48, None, ORDER)
    assert buffer.array.shape == (2, 3) and buffer.nbytes == 96
    custom.delete()
    assert not buffer.taken() and buffer.nbytes == 48
    assert buffer.fetch().tolist() == [[0, 1, 2], [3, 4, 5]]
    buffer.array.delete()
    assert buffer.taken() and not buffer.gone()
    buffer.release()
    assert buffer.gone() and buffer.nbytes == 0


def test_parameter_is_valid_op_by_op_during_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    training, reference = Training(), Training("cpu")
    assert_close(training.steps(2), reference.steps(2))
    assert training.laid
    training.x, reference.x = training.x[:1].clone(), reference.x[:1].clone()
    background = wiring.start().background
    with lazytpu.options(background_compile=0.001):
        training.step()
        training.optimizer.zero_grad()
        lazytpu.mark_step()
        reference.steps(1)
    assert_close(training.layer.weight.detach().cpu(), reference.layer.weight.detach())
    for job in background.unfinished():
        job.done.wait(60)
    assert_close(training.steps(2), reference.steps(2))


def test_parameter_is_valid_in_clusters() -> None:
    with lazytpu.options(clusters="only"):
        training = Training()
        assert_close(training.steps(3), Training("cpu").steps(3))


def test_program_from_disk_has_its_layouts() -> None:
    text = """module @m { func.func public @main(
      %x: tensor<2x3xf32> {mhlo.layout_mode = "{0,1}", tf.aliasing_output = 1 : i32}, %y: tensor<2xf32>)
      -> (tensor<2xf32>, tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}) {
        return %y, %x : tensor<2xf32>, tensor<2x3xf32> } }"""
    with client.mlir_context():
        module = ir.Module.parse(text)
    key = programs.program_key(module)
    compiled = programs.obtain(module, key).program
    loaded = programs.load(key)
    assert loaded is not None and loaded is not compiled and loaded.layouts is not None
    assert loaded.layouts == compiled.layouts
    assert (loaded.layouts.arguments, loaded.layouts.results) == ((ORDER, None), (None, ORDER))
