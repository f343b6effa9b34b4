"""Every so many calls, a captured call is recorded and compared; one that is another by now is dropped."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from worlds import World, agree, batch, model, train

import lazytpu
from lazytpu.replay.refusal import CaptureWarning


def test_captures_that_are_right_stay():
    def make() -> World:
        net = model(torch.nn.Dropout(0.3))
        world = World(None, net, torch.optim.AdamW(net.parameters(), lr=0.01))
        world.step = train(world)
        return world

    captured = agree(make, calls=21, replays=12, verify_every=4)
    assert captured.captures == 1 and captured.replays == 21 - 4 - 3


@pytest.mark.parametrize("what", ["number", "op"])
def test_what_no_guard_sees(what: str):
    """An iterator's state is not compared; the recorded call is right, and the calls after it."""
    counter = itertools.count()

    def step(x: torch.Tensor) -> torch.Tensor:
        late = next(counter) > 6
        if what == "number":
            return x * (3.0 if late else 2.0)
        return x.sin() if late else x * 2.0

    captured: Any = lazytpu.step(step, verify_every=5)
    x = torch.ones(1, device="tpu")
    late = 3.0 if what == "number" else torch.ones(()).sin().item()
    reason = "a number" if what == "number" else "records aten.mul.Tensor at .*, and aten.sin"
    found: list[float] = []
    for _ in range(8):  # three recorded, and five captured
        found.append(captured(x).item())
    for _ in range(4):
        next(counter)
    with pytest.warns(CaptureWarning, match=f"recorded again, and is another by now: .*{reason}"):
        found.append(captured(x).item())
    found.extend(captured(x).item() for _ in range(6))
    assert found == pytest.approx([2.0] * 8 + [late] * 7)
    assert captured.captures == 1


def test_none_is_compared():
    captured: Any = lazytpu.step(lambda x: x * 2, verify_every=0)
    for i in range(10):
        captured(batch(i)[0])
    assert captured.replays == 7
