"""Parameters and optimizer states that a step keeps flat: nobody sees it, and each is as valid as any other tensor."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

import lazytpu
from lazytpu.engine.compiling.translate import translate
from lazytpu.engine.trace_cache import index
from lazytpu.engine.trace_cache.index import Malformed
from lazytpu.frontend.recording.tensors import recorder, value_of
from lazytpu.options import options
from lazytpu.passes.pipeline import CPU
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.resident import Form, Pack, Part
from lazytpu.runtime.signature import signature
from lazytpu.trace.trie import CutPlan
from tests.engine.test_faults import Failing
from tests.engine.test_index import PROGRAM

COUNT = 9


@pytest.fixture(autouse=True)
def flat() -> Iterator[None]:
    with options(resident=8):
        yield


class Training:
    """Nine small parameters and one that is too large to be kept flat, with their momentum."""

    doubled: torch.Tensor

    def __init__(self, device: str = "tpu") -> None:
        start = [torch.arange(1.0, 3.0 + i % 3) / (i + 1) for i in range(COUNT)] + [torch.ones(10)]
        self.parameters = [torch.nn.Parameter(each.to(device)) for each in start]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1, momentum=0.9)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = sum((p.flip(0) * p).sum() for p in self.parameters)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def steps(self, count: int) -> list[torch.Tensor]:
        """The parameters after so many steps more."""
        for _ in range(count):
            self.step()
            lazytpu.mark_step()
        return self.now()

    def now(self) -> list[torch.Tensor]:
        return [p.detach().cpu().clone() for p in self.parameters]


def parts(training: Training) -> list[Part]:
    """The buffers of the parameters that lie in packs."""
    found = [value_of(p).buffer for p in training.parameters]
    return [buffer for buffer in found if isinstance(buffer, Part) and buffer.pack is not None]


def test_steps_give_what_they_give_on_the_cpu() -> None:
    lazytpu.sync()
    training, compiles = Training(), [lazytpu.metrics()["compiles"]]
    for _ in range(4):
        training.step()
        lazytpu.mark_step()
        compiles.append(lazytpu.metrics()["compiles"])
    assert [b - a for a, b in pairwise(compiles)] == [1, 1, 0, 0]
    assert_close(training.now(), Training("cpu").steps(4))
    assert len(parts(training)) == COUNT and len({part.pack for part in parts(training)}) == 1
    assert all(not part.copied for part in parts(training))  # reading copies nothing on the device


def parameters_alive() -> int:
    """Among them those that other tests still hold."""
    gc.collect()
    amount = lazytpu.memory().by_category().get("parameters")
    return amount.values if amount is not None else 0


def test_a_pack_goes_from_step_to_step_and_memory_is_counted_once() -> None:
    others = parameters_alive()
    training = Training()
    training.steps(3)
    lazytpu.sync()
    pack = parts(training)[0].pack
    assert pack is not None and pack.form == Form.of(pack.form.dtype, sorted(pack.form.shapes))
    array = pack.array
    assert array is not None
    assert parameters_alive() == others + COUNT + 1
    before = lazytpu.memory()
    assert before.allocated == lazytpu.metrics()["live_bytes"]
    training.steps(1)
    assert array.is_deleted() and pack.array is None  # given to the run
    gc.collect()
    assert lazytpu.memory().allocated == before.allocated


def test_other_programs_and_the_host_read_and_write_single_parts() -> None:
    training = Training()
    training.steps(3)
    other = Training("cpu")
    other.steps(3)
    for each in (training, other):
        with torch.no_grad():
            each.doubled = each.parameters[1] * 2
            each.parameters[2].view(-1)[0] = 5.0
            each.parameters[3].copy_(torch.full_like(each.parameters[3], 7.0))
        lazytpu.mark_step()
    assert_close(training.doubled.cpu(), other.doubled)
    assert parts(training)[1].copied and len(parts(training)) == COUNT - 2
    assert_close(training.steps(2), other.steps(2))
    assert len({part.pack for part in parts(training)}) == 1 and len(parts(training)) == COUNT


def test_the_index_knows_the_program_and_nothing_else_is_believed() -> None:
    training = Training()
    training.steps(2)
    training.step()
    mine = recorder()
    state, plan = mine.state, CutPlan.of(mine.state)
    live = tuple([slot for slot in plan.results if mine.values[slot]() is not None])
    dead = tuple([i for i, slot in enumerate(plan.inputs) if mine.values[slot]() is None])
    made = translate(state.records(), live, dead, {}, name="test", bounds_check=True, target=CPU, resident=8)
    entry = made.entry(PROGRAM, live)
    assert [len(inputs) for inputs, _ in entry.resident] == [COUNT, COUNT]
    assert index.decode(index.encode(entry), state, live, dead) == entry
    with made.module.context:
        assert index.signature(entry, state.records()) == signature(made.module)
    (inputs, slots), other = entry.resident
    for wrong in (
        (inputs[:-1], slots),
        (inputs, slots[:-1]),
        (inputs[::-1], slots),
        (other[0], slots),
        ((*inputs[:-1], 999), slots),
        ((*inputs[:-1], "0"), slots),
        ((), ()),
    ):
        fields = {**index.as_json(entry), "resident": [wrong, other]}
        with pytest.raises(Malformed):
            index.decode(json.dumps(fields).encode(), state, live, dead)
    lazytpu.mark_step()


def test_a_part_lives_on_when_the_others_are_gone() -> None:
    training = Training()
    training.steps(2)
    kept = training.parameters[4].detach()
    wanted = kept.tolist()
    del training
    gc.collect()
    (pack,) = [each for each in gc.get_objects() if type(each) is Pack and each.array is not None]
    report = lazytpu.memory()
    (rest,) = [value.nbytes for value in report.values if value.name == "kept flat beside others"]
    assert rest == pack.nbytes - kept.nbytes
    assert report.allocated == lazytpu.metrics()["live_bytes"] >= pack.nbytes
    assert (kept + 0).tolist() == wanted


def test_a_step_that_fails_leaves_the_parts_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    before = training.steps(3)
    Failing(monkeypatch)
    training.step()
    with pytest.raises(RunError, match="on fire"):
        lazytpu.mark_step()
    assert all(map(torch.equal, training.now(), before))
    assert_close(training.steps(1), Training("cpu").steps(4))


def test_a_copy_of_a_parameter_keeps_its_contents() -> None:
    training = Training()
    training.steps(2)
    copy = training.parameters[0].detach().clone()
    lazytpu.mark_step()
    wanted = copy.tolist()
    training.steps(2)
    assert copy.tolist() == wanted != training.parameters[0].tolist()
