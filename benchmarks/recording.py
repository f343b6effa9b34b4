"""What recording costs the host, beside torch eager.

    python benchmarks/recording.py

Microseconds of this thread's CPU time per op on 4x4 tensors, smallest of many runs, all hits:

    dispatch floor   a Python kernel that does nothing: torch's dispatcher and the way back, the floor of this design
    record           the op, as a script calls it; its results stay alive until the cut
    cut              launching the program that computes them, per op
    eager            the same op on the CPU by stock PyTorch, dispatch and arithmetic

then whole training steps with AdamW, of an MLP and of a 12-layer transformer (process CPU time: autograd has its own
thread), recording and cut, and the same steps by stock PyTorch on the CPU.

Last, the host's time of language models, with the arithmetic of each step between two recordings, so that caches are
cold: training steps of a GPT and a Llama of 4 layers, and tokens of a Llama with 32 layers and a static cache, and with
4 layers and a growing one. That is CPU time of all threads that run Python, split into its parts (see host_time.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common import Row, compile_at_once, exit_with, finish, parser
from host_time import PARTS, dispatch_floor, split
from language import GPT, LENGTH, Llama, decoding, training
from torch import Tensor, nn
from workloads import Training, aten_ops, mlp, transformer

import lazytpu

OPS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "add": lambda x, y: x + y,
    "relu": lambda x, y: x.relu(),
    "mm": lambda x, y: x @ y,
    "view": lambda x, y: x.view(16),
    "add_": lambda x, y: x.add_(y),
}
TARGET = 8.0  # microseconds to record an op of two operands without autograd, the dispatcher included
TARGET_MLP = 5.8  # milliseconds of CPU for all of its step: 8 microseconds for each of its ops
TARGET_TRANSFORMER = 25.0  # milliseconds to record its step


def per_op(op: Callable[[Tensor, Tensor], object], device: str, ops: int, repeats: int) -> tuple[float, float]:
    """Microseconds per op while recording (on the CPU: running), and in the cut."""
    x, y = (torch.randn(4, 4).to(device) for _ in range(2))
    record = cut = float("inf")
    for _ in range(repeats + 2):  # the first compiles, the second may too
        start = time.thread_time()
        results = [op(x, y) for _ in range(ops)]
        middle = time.thread_time()
        lazytpu.mark_step()
        end = time.thread_time()
        lazytpu.sync()
        del results
        record, cut = min(record, middle - start), min(cut, end - middle)
    return 1e6 * record / ops, 1e6 * cut / ops


def training_step(
    make: Callable[[], tuple[nn.Module, Tensor]], device: str, repeats: int
) -> tuple[float, float, float]:
    """Milliseconds of a training step before its cut, in it, and in all, the threads of XLA included."""
    step = Training(make, device)
    record = cut = total = float("inf")
    for _ in range(repeats + 3):
        start = time.process_time()
        step()
        middle = time.process_time()
        lazytpu.mark_step()
        end = time.process_time()
        lazytpu.sync()
        total = min(total, time.process_time() - start)
        record, cut = min(record, middle - start), min(cut, end - middle)
    return 1e3 * record, 1e3 * cut, 1e3 * total


def models(quick: bool) -> list[Row]:
    """The host's time of steps of language models, and its parts."""
    layers, many = (1, 2) if quick else (4, 32)
    steps: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
        f"GPT, {layers} layers": (lambda: training(GPT(layers)), 5),
        f"Llama, {layers} layers": (lambda: training(Llama(layers)), 5),
        f"Llama, {many} layers, a token": (lambda: decoding(many, static=True), 5),
        f"Llama, {layers} layers, a token, growing cache": (lambda: decoding(layers, static=False), 2 * LENGTH),
    }
    rows: list[Row] = []
    for name, (make, warmup) in steps.items():
        torch.manual_seed(0)
        figures = split(make(), 3 if quick else 40, 3 if quick else warmup)
        rows += [Row(f"{name}: {part}", figures[part], "ms") for part in ("least", "median", *PARTS)]
    return rows


def main() -> int:
    options = parser("recording", __doc__)
    options.add_argument("--ops", type=int, default=200, help="ops between two cuts (default: 200)")
    args = options.parse_args()
    compile_at_once()
    repeats = 3 if args.quick else 30

    rows = [Row("dispatch floor", dispatch_floor(args.ops, repeats), "µs")]
    for name, op in OPS.items():
        record, cut = per_op(op, "tpu", args.ops, repeats)
        eager, _ = per_op(op, "cpu", args.ops, repeats)
        rows.append(Row(f"{name}: record", record, "µs", TARGET if name == "add" else None))
        if name != "view":
            rows.append(Row(f"{name}: cut, per op", cut, "µs"))
        rows.append(Row(f"{name}: torch eager on the CPU", eager, "µs"))
    for name, make, limit, limit_all in (
        ("MLP", mlp, None, TARGET_MLP),
        ("12-layer transformer", lambda: transformer(1 if args.quick else 12), TARGET_TRANSFORMER, None),
    ):
        record, cut, total = training_step(make, "tpu", 2 if args.quick else 20)
        eager, _, _ = training_step(make, "cpu", 2 if args.quick else 20)
        rows += [
            Row(f"{name}, {aten_ops(make):,} ops: record", record, "ms", limit),
            Row(f"{name}: cut", cut, "ms"),
            Row(f"{name}: whole step", total, "ms", limit_all),
            Row(f"{name}: torch eager on the CPU", eager, "ms"),
        ]
    return finish("recording", rows + models(args.quick), args)


if __name__ == "__main__":
    exit_with(main)
