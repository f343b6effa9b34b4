"""What a captured training step costs beside the same step as one hand-written `jax.jit`, with donated state.

    python benchmarks/capture.py

Both train the MLP with AdamW from the same weights, in one process, in turns; and once more without capture. Wall time
of a step is that of many with one wait at their end, the fastest of several rounds; the host's part is the best call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from common import Row, compile_at_once, exit_with, finish, parser
from torch import nn
from workloads import Training, mlp

import lazytpu

TARGET = 2.0  # times jax.jit
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01  # torch.optim.AdamW's defaults
Step = Callable[[], Any]


def main() -> int:
    args = parser("capture", __doc__).parse_args()
    compile_at_once()
    rounds, steps = (2, 20) if args.quick else (10, 300)
    training = Training(mlp)
    assert isinstance(training.model, nn.Sequential)
    steps_by_name: dict[str, tuple[Step, Callable[[Any], Any]]] = {
        "jax.jit": jax_step(training.model, training.x),
        "captured": (lazytpu.step(training, strict=True), lambda _: lazytpu.sync()),
        "recorded": (Training(mlp), lambda _: lazytpu.sync()),
    }
    losses = {name: [float(step()) for _ in range(8)] for name, (step, _) in steps_by_name.items()}
    for name, found in losses.items():
        assert all(abs(a - b) < 1e-4 * b for a, b in zip(found, losses["jax.jit"])), (name, losses)
    best = dict.fromkeys(steps_by_name, (float("inf"), float("inf")))
    for _ in range(rounds):
        for name, (step, wait) in steps_by_name.items():
            wall, host = timed(step, wait, steps)
            best[name] = min(best[name][0], wall), min(best[name][1], host)
    rows = [Row(f"{name}, an MLP's step", 1e3 * wall, "ms") for name, (wall, _) in best.items()]
    rows += [Row(f"{name}, the host's part", 1e3 * host, "ms") for name, (_, host) in best.items()]
    rows.append(Row("captured / jax.jit", best["captured"][0] / best["jax.jit"][0], "", TARGET))
    return finish("capture", rows, args)


def timed(step: Step, wait: Callable[[Any], Any], steps: int) -> tuple[float, float]:
    """Seconds of wall time a step, and of the call that took the least."""
    start, host, value = time.perf_counter(), float("inf"), None
    for _ in range(steps):
        before = time.perf_counter()
        value = step()
        host = min(host, time.perf_counter() - before)
    wait(value)
    return (time.perf_counter() - start) / steps, host


def jax_step(model: nn.Sequential, x: Any) -> tuple[Step, Callable[[Any], Any]]:
    """The same step in JAX, and how to wait for its loss."""
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    params = [(jnp.array(m.weight.detach().cpu()), jnp.array(m.bias.detach().cpu())) for m in layers]
    inputs = jnp.array(x.cpu())

    def loss_of(params: Any, x: Any) -> Any:
        y = x
        for weight, bias in params:
            y = jax.nn.relu(jnp.einsum("bi,oi->bo", y, weight) + bias)
        return jnp.mean((y - x) ** 2)

    @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def update(params: Any, first: Any, second: Any, count: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        count = count + 1
        one, two = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
        first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, grads)
        second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, grads)

        def stepped(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - LR * DECAY) - LR / one * m / (jnp.sqrt(v) / jnp.sqrt(two) + EPS)

        return jax.tree.map(stepped, params, first, second), first, second, count, loss

    state: Any = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.float32(0))

    def step() -> Any:
        nonlocal state
        *state, loss = update(*state, inputs)
        return loss

    return step, lambda loss: loss.block_until_ready()


if __name__ == "__main__":
    exit_with(main)
