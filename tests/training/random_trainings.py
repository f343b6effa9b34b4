"""Compare the losses of random trainings of small models on "tpu" and on the CPU.

    python -X faulthandler -m tests.training.random_trainings --first 100 --count 20

Each seed decides a model, an optimizer, a schedule, the mode, and the events between steps: saved and loaded
checkpoints, varying sizes, errors inside a step, evaluation, torch.compile, autocast, workers that load the data. The
seed is printed before its training, so that the output of a crashed process names the training.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import math
import random
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lazytpu
from tests.training.optimizer_choices import CAPTURABLE, FUSED, OPTIMIZERS, PLAIN

STEPS = 10


class Expected(Exception):
    """Raised on purpose inside a step."""


class Convolutions(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), norm(width), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(width * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.view(-1, 1, 4, 4)).flatten(1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.inner, self.heads, self.causal = nn.Linear(4, width), heads, causal
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, 4), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x.view(-1, 4, 4))
        heads = [rows.unflatten(-1, (self.heads, -1)).transpose(1, 2) for rows in self.qkv(self.norm(x)).chunk(3, -1)]
        y = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out((x + y.transpose(1, 2).flatten(2)).mean(1))


class Words(nn.Module):
    """Embeddings of the quantized input; with `tied` the table is also the weight of the head."""

    def __init__(self, width: int, tied: bool) -> None:
        super().__init__()
        self.table, self.mix, self.tied = nn.Embedding(8, width), nn.Linear(width, width), tied
        self.head = nn.Linear(width, 8, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        words = ((x * 2).long().clamp(-4, 3) + 4) % 8
        return self.head(torch.tanh(self.mix(self.table(words))).mean(1))[:, :4]


class Recurrent(nn.Module):
    def __init__(self, kind: Any, width: int, layers: int, both: bool) -> None:
        super().__init__()
        self.cells: Any = kind(4, width, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(width * (1 + both), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.view(-1, 4, 4))[0].mean(1))


class Residual(nn.Module):
    """Residual blocks, optionally checkpointed, optionally with a branch that depends on the size of the batch."""

    def __init__(self, width: int, depth: int, again: str, branches: bool) -> None:
        super().__init__()
        self.first, self.last, self.again, self.branches = nn.Linear(16, width), nn.Linear(width, 4), again, branches
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if self.branches and x.shape[0] > 2:
                x = x.roll(1, 0)
            x = x + (checkpoint(block, x, use_reentrant=self.again == "reentrant") if self.again else block(x))
        return self.last(x)


@dataclass
class Plan:
    """All that a seed decides about a training."""

    seed: int
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = draw = random.Random(self.seed)
        self.mode = draw.choice(["fused", "fused", "fused", "lazy", "strict", "debug"])
        self.kind = draw.choice(["mlp", "residual", "convolutions", "attention", "words", "recurrent"])
        self.optimizer = draw.choice(list(OPTIMIZERS))
        self.options = {k: draw.choice(v) if isinstance(v, tuple) else v for k, v in OPTIMIZERS[self.optimizer].items()}
        if self.options.get("nesterov") and not self.options["momentum"]:
            self.options["nesterov"] = False
        self.on_device: dict[str, Any] = {}
        if self.optimizer not in PLAIN:
            self.on_device["foreach"] = draw.choice([None, True, False])
            if self.optimizer in FUSED and draw.random() < 0.3:
                self.on_device = {"fused": True}
            if self.optimizer in CAPTURABLE and draw.random() < 0.3:
                self.on_device["capturable"] = True
            self.options["maximize"] = draw.random() < 0.1
        self.schedule = draw.choice(["none", "step", "cosine", "cycle", "plateau", "lambda", "warm", "chain"])
        self.batch, self.rows = draw.choice([1, 3, 4, 8]), draw.choice([16, 21, 29])
        self.workers = 2 if draw.random() < 0.05 else 0
        self.accumulate = draw.choice([1, 1, 1, 2, 3]) if self.optimizer != "LBFGS" else 1
        self.to_none, self.clip = draw.random() < 0.7, draw.choice(["none", "none", "norm", "value"])
        self.amp = draw.choice(["none", "none", "none", "autocast", "scaler"]) if self.optimizer != "LBFGS" else "none"
        self.compiled = draw.random() < 0.25
        self.read = draw.choice(["each", "late", "each", "log"])
        self.events = {step: draw.choice(EVENTS) for step in draw.sample(range(1, STEPS), draw.randrange(4))}
        self.thread = draw.random() < 0.1
        self.vary, self.normed = draw.random() < 0.4, draw.random() < 0.1

    def model(self) -> nn.Module:
        draw, width = random.Random(self.seed + 1), random.Random(self.seed).choice([4, 6, 8, 16])
        torch.manual_seed(self.seed)
        if self.kind == "convolutions":
            norm = draw.choice([nn.BatchNorm2d, lambda n: nn.GroupNorm(2, n), lambda n: nn.InstanceNorm2d(n, True)])
            return Convolutions(width, norm)
        if self.kind == "attention":
            return Attention(width, draw.choice([1, 2]), draw.random() < 0.5)
        if self.kind == "words":
            return Words(width, draw.random() < 0.5)
        if self.kind == "recurrent":
            return Recurrent(draw.choice([nn.RNN, nn.LSTM, nn.GRU]), width, draw.choice([1, 2]), draw.random() < 0.3)
        if self.kind == "residual":
            return Residual(width, draw.choice([1, 3]), draw.choice(["", "reentrant", "not"]), draw.random() < 0.5)
        layers: list[nn.Module] = [nn.Linear(16, width)]
        for _ in range(draw.randrange(3)):
            activation = draw.choice([nn.ReLU, nn.Tanh, nn.SiLU, nn.Softplus, nn.PReLU, nn.Mish])
            layers += [activation(), nn.Linear(width, width, bias=draw.random() < 0.7)]
        model = nn.Sequential(*layers, nn.Linear(width, 4))
        if self.normed:
            nn.utils.parametrizations.weight_norm(model[0])
        return model

    def describe(self) -> str:
        shown = {k: v for k, v in vars(self).items() if k != "draw" and v not in (None, False, "none", {}, 0)}
        return " ".join(f"{k}={v}" for k, v in shown.items())


EVENTS = ("save", "state_dict", "deepcopy", "error", "bad shape", "evaluate", "collect", "average", "pickle", "freeze")


def schedule_of(name: str, optimizer: torch.optim.Optimizer) -> Any:
    """Return the schedule of the learning rate, or None."""
    of = torch.optim.lr_scheduler
    schedules: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "step": lambda: of.StepLR(optimizer, 3, 0.5),
        "cosine": lambda: of.CosineAnnealingLR(optimizer, 5),
        "cycle": lambda: of.CyclicLR(optimizer, 0.001, 0.01, 3, cycle_momentum=False),
        "plateau": lambda: of.ReduceLROnPlateau(optimizer, patience=1),
        "lambda": lambda: of.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "warm": lambda: of.CosineAnnealingWarmRestarts(optimizer, 3),
        "chain": lambda: of.SequentialLR(
            optimizer, [of.LinearLR(optimizer, 0.1, total_iters=3), of.ExponentialLR(optimizer, 0.9)], [3]
        ),
    }
    return schedules[name]()


class Training:
    """The training of a plan on one device and in one dtype."""

    def __init__(self, plan: Plan, device: str, dtype: torch.dtype) -> None:
        self.plan, self.device, self.dtype, self.losses = plan, device, dtype, list[Any]()
        self.model = plan.model().to(device, dtype)
        self.optimizer = self.make_optimizer(self.model)
        self.schedule = schedule_of(plan.schedule, self.optimizer)
        self.scaler = torch.amp.GradScaler(device, init_scale=64.0, enabled=plan.amp == "scaler" and device == "tpu")
        self.average: Any = None
        self.call = self.compiled(self.model)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        plan = self.plan
        options = {**plan.options, **(plan.on_device if self.device == "tpu" else {})}
        return getattr(torch.optim, plan.optimizer)(model.parameters(), **options)

    def compiled(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(model) if self.plan.compiled and self.device == "tpu" else model

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        amp = self.plan.amp != "none" and self.dtype is torch.float32
        with torch.autocast(self.device, torch.bfloat16) if amp else nullcontext():
            loss = functional.cross_entropy(self.call(x).float() if amp else self.call(x), y)
        return -loss if self.plan.options.get("maximize") else loss

    def step(self, x: Tensor, y: Tensor, update: bool) -> None:
        plan, optimizer = self.plan, self.optimizer
        if plan.optimizer == "LBFGS":

            def closure() -> Any:
                optimizer.zero_grad(plan.to_none)
                loss = self.loss(x, y)
                loss.backward()
                return loss

            loss: Any = optimizer.step(closure)
        else:
            loss = self.loss(x, y)
            self.scaler.scale(loss / plan.accumulate).backward()
            if update:
                self.scaler.unscale_(optimizer)
                if plan.clip == "norm":
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                elif plan.clip == "value":
                    nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
                self.scaler.step(optimizer)
                self.scaler.update()
                optimizer.zero_grad(plan.to_none)
        self.losses.append(float(loss) if plan.read == "each" else loss.detach())
        if plan.read == "log" and len(self.losses) % 4 == 0:
            self.losses = [float(loss) for loss in self.losses]
        if update and self.schedule is not None:
            self.schedule.step(*((float(loss),) if plan.schedule == "plateau" else ()))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        plan, random_ = self.plan, torch.Generator().manual_seed(self.plan.seed)
        x = torch.randn(plan.rows, 16, generator=random_, dtype=torch.float32)
        y = torch.randint(0, 4, (plan.rows,), generator=random_)
        loader = DataLoader(TensorDataset(x, y), plan.batch, drop_last=not plan.vary, num_workers=plan.workers)
        while True:
            for a, b in loader:
                yield a.to(self.device, self.dtype), b.to(self.device)

    def event(self, kind: str, x: Tensor, y: Tensor) -> None:
        """Apply an event between two steps."""
        if kind in ("save", "state_dict"):
            kept = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            if kind == "save":
                torch.save(kept, file := io.BytesIO())
                file.seek(0)
                kept = torch.load(file, map_location=self.device if self.plan.seed % 2 else "cpu")
            else:
                kept = copy.deepcopy(kept)
            self.model = self.plan.model().to(self.device, self.dtype)
            self.model.load_state_dict(kept["model"])
            self.optimizer = self.make_optimizer(self.model)
            saved = self.schedule.state_dict() if self.schedule is not None else None
            self.schedule = schedule_of(self.plan.schedule, self.optimizer)
            self.optimizer.load_state_dict(kept["optimizer"])
            if saved is not None:
                self.schedule.load_state_dict(saved)
            self.call = self.compiled(self.model)
        elif kind == "deepcopy" and self.plan.optimizer != "LBFGS":  # its copies cannot step
            self.model, self.optimizer = copy.deepcopy((self.model, self.optimizer))
            self.schedule = schedule_of("none", self.optimizer)
            self.call = self.compiled(self.model)
        elif kind == "pickle" and not self.plan.normed:
            torch.save(self.model, file := io.BytesIO())
            file.seek(0)
            again = torch.load(file, weights_only=False)
            for parameter, loaded in zip(self.model.parameters(), again.parameters(), strict=True):
                with torch.no_grad():
                    parameter.mul_(0.5).add_(loaded, alpha=0.5)
        elif kind == "error":
            with suppress(Expected):
                loss = self.loss(x, y)
                loss.register_hook(_raise)
                loss.backward()
        elif kind == "bad shape":
            with suppress(RuntimeError):
                self.model(x[:, :7])
        elif kind == "evaluate":
            self.model.eval()
            with torch.no_grad():
                self.losses.append(float(functional.cross_entropy(self.model(x).to(self.dtype), y)))
            self.model.train()
        elif kind == "collect":
            gc.collect()
        elif kind == "average":
            if self.average is None:
                self.average = torch.optim.swa_utils.AveragedModel(self.model)
            self.average.update_parameters(self.model)
            self.losses.append(float(sum(p.square().sum() for p in self.average.parameters())))
        elif kind == "freeze":
            first = next(self.model.parameters())
            first.requires_grad_(not first.requires_grad)

    def run(self) -> list[float]:
        """Train and return the losses, the measurements of events and the sums of the weights."""
        for step, (x, y) in zip(range(STEPS), self.batches(), strict=False):
            if step in self.plan.events:
                self.event(self.plan.events[step], x, y)
            self.step(x, y, (step + 1) % self.plan.accumulate == 0)
        weights = [float(p.double().cpu().abs().sum()) for p in self.model.parameters()]
        return [float(loss) for loss in self.losses] + weights


def _raise(*_: Any) -> None:
    raise Expected


def differences(plan: Plan) -> str | None:
    """Return the first difference between the trainings on the device and on the CPU, or None. The tolerance grows with
    the error of the CPU, the distance of its float32 losses from its float64 losses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        single = Training(plan, "cpu", torch.float32).run()
        double = single if plan.amp != "none" else Training(plan, "cpu", torch.float64).run()
        with lazytpu.mode(plan.mode):
            ours = _in_thread(plan) if plan.thread else Training(plan, "tpu", torch.float32).run()
        lazytpu.sync()
    if len(ours) != len(single):
        return f"{len(ours)} losses, {len(single)} on the CPU"
    slack = 0.05 if plan.amp != "none" else 2e-4
    error = 0.0
    for i, (a, b, c) in enumerate(zip(ours, single, double, strict=True)):
        error = max(error, abs(b - c))  # the largest error so far
        if math.isfinite(b) and not abs(a - b) <= 30 * error + slack * max(1.0, abs(b)):
            return f"loss {i} is {a}, on the CPU {b} and {c} in float64\n  {ours}\n  {single}"
    return None


def _in_thread(plan: Plan) -> list[float]:
    """Train in a new thread while this thread trains, too; return the losses of the new thread."""
    losses: list[list[float]] = []

    def train() -> None:
        with lazytpu.mode(plan.mode):
            losses.append(Training(plan, "tpu", torch.float32).run())

    thread = threading.Thread(target=train)
    thread.start()
    Training(plan, "tpu", torch.float32).run()
    thread.join()
    return losses[0] if losses else []


def main() -> None:
    """Train the models of some seeds; exit with 1 if any losses were wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options, failed, began = parser.parse_args(), 0, time.monotonic()
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - began > options.seconds:
            break
        plan = Plan(seed)
        print(f"seed {seed}: {plan.describe()}", flush=True)
        try:
            wrong = differences(plan)
        except Exception as error:  # noqa: BLE001  (later seeds still run)
            wrong = "".join(traceback.format_exception(error))
        if wrong:
            failed += 1
            print(f"FAILED seed {seed}: {wrong}", flush=True)
        torch._dynamo.reset() if plan.compiled else None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
