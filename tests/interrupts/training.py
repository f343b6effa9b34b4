"""A training loop that is interrupted at random points; test_storm.py runs it, in a separate process.

After each interrupt every parameter, buffer and optimizer state must hold its value before the step, or after an
uninterrupted step. Every tensor must be readable, and the device usable. Exits with 1 and prints the error.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import lazytpu

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adam-loop": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=False),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}
MAX_ROWS = 200  # rows of a batch that varies
MAX_DELAY = 0.006  # seconds from the start of a step to its interrupt: a step takes about 3 ms


class Interrupter:
    """Raises KeyboardInterrupt in the main thread, once, some time after `ring_after`; by a timer, or as Ctrl-C
    does."""

    def __init__(self, signum: signal.Signals):
        self.signum, self.armed = signum, False
        signal.signal(signum, self._ring)

    def ring_after(self, seconds: float) -> None:
        self.armed = True
        if self.signum == signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        else:
            threading.Timer(seconds, os.kill, (os.getpid(), self.signum)).start()

    def _ring(self, *_: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(True)  # an interrupt on the way into torch.no_grad() leaves it off
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def contents(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
    """Return all state of model and optimizer, on the CPU."""
    tensors: dict[Any, Any] = dict(model.state_dict())
    for i, parameter in enumerate(model.parameters()):
        tensors.update({(i, name): value for name, value in optimizer.state.get(parameter, {}).items()})
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in tensors.items()}


def same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    """Compare to a few units in the last place: an interrupted step may have run as other programs."""
    return a is not None and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7)


def storm(count: int, seed: int, mode: str, optimizer_name: str, signum: signal.Signals, sizes: bool) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    lazytpu.set_mode(mode)
    linear, norm, last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(linear, torch.nn.ReLU(), norm, last).to("tpu")
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    x = torch.linspace(-1, 1, 24).reshape(4, 6).to("tpu")
    for _ in range(4):
        train(model, optimizer, x).item()
    interrupter, interrupted = Interrupter(signum), 0
    while interrupted < count:
        before = contents(model, optimizer)
        twin = copy.deepcopy(model)
        twin_optimizer = OPTIMIZERS[optimizer_name](twin.parameters())
        twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if sizes:  # most sizes are new when the interrupt comes
            x = torch.linspace(-1, 1, 6 * (size := chance.randint(2, MAX_ROWS))).reshape(size, 6).to("tpu")
        else:
            train(twin, twin_optimizer, x)
        try:
            interrupter.ring_after(chance.uniform(0.0002, MAX_DELAY))
            train(model, optimizer, x)
            end = time.monotonic() + 30
            while interrupter.armed:
                x * 2
                if time.monotonic() > end:
                    sys.exit("the interrupt was lost")
        except KeyboardInterrupt:
            interrupted += 1
        torch.set_grad_enabled(True)
        if sizes:
            train(twin, twin_optimizer, x)
        after = contents(twin, twin_optimizer)
        for name, value in contents(model, optimizer).items():
            if not same(before.get(name), value) and not same(after.get(name), value):
                sys.exit(f"{name} has neither its old nor its new value:\n{before[name]}\n{after[name]}\n{value}")
        if (torch.ones(2, device="tpu") * 3).tolist() != [3.0, 3.0]:
            sys.exit("the device computes something else")
        model.load_state_dict(twin.state_dict())  # the interrupted step may be half complete
        optimizer.load_state_dict(twin_optimizer.state_dict())
    print(f"{interrupted} interrupts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", default="fused")
    parser.add_argument("--optimizer", default="sgd", choices=OPTIMIZERS)
    parser.add_argument("--signal", default="SIGALRM", choices=["SIGALRM", "SIGINT"])
    parser.add_argument("--sizes", action="store_true", help="batches of many sizes")
    given = parser.parse_args()
    with lazytpu.options(buckets=(64, 128, MAX_ROWS) if given.sizes else "off"):
        storm(given.count, given.seed, given.mode, given.optimizer, signal.Signals[given.signal], given.sizes)
