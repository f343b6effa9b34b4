"""A captured training step beside the same step as one hand-written `jax.jit`, with donated state.

    python benchmarks/capture.py

Both train an MLP with AdamW, from the same weights, in one process, in turns. A round is `--steps` steps with one wait
at its end; shown is the fastest round, since the noise of a machine only adds. The host's part is what a call takes to
return, the fastest call of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from common import Row, compile_at_once, exit_with, finish, parser
from torch import nn

import lazytpu

LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
TARGET = 2.0  # times jax.jit


def main() -> int:
    options = parser("capture", __doc__)
    options.add_argument("--layers", type=int, default=20)
    options.add_argument("--width", type=int, default=32)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--steps", type=int, default=200, help="steps of a round")
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    compile_at_once()
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(args.layers):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    x, y = (torch.randn(args.batch, args.width) for _ in "xy")
    engines = {"jax.jit": jax_step(model, x, y), "recorded": torch_step(model, x, y, capture=False)}
    engines["captured"] = torch_step(model, x, y, capture=True)
    losses = {name: [float(step()) for _ in range(10)] for name, (step, _) in engines.items()}
    for name, found in losses.items():
        assert all(abs(a - b) < 1e-4 * abs(b) for a, b in zip(found, losses["jax.jit"])), (name, losses)
    best: dict[str, dict[str, float]] = {name: dict.fromkeys(("wall", "CPU", "host"), float("inf")) for name in engines}
    for _ in range(1 if args.quick else args.rounds):
        for name, (step, wait) in engines.items():
            found = timed(step, wait, 20 if args.quick else args.steps)
            best[name] = {kind: min(best[name][kind], milliseconds) for kind, milliseconds in found.items()}
    rows = [Row(f"{name}: {kind}", best[name][kind], "ms") for name in engines for kind in best[name]]
    rows.append(Row("captured / jax.jit, wall", best["captured"]["wall"] / best["jax.jit"]["wall"], "", TARGET))
    return finish("capture", rows, args)


def timed(step: Callable[[], Any], wait: Callable[[Any], Any], steps: int) -> dict[str, float]:
    """Wall and CPU time of a step, and the shortest time that a call took to return, in milliseconds."""
    cpu, start, host = time.process_time(), time.perf_counter(), float("inf")
    value = None
    for _ in range(steps):
        before = time.perf_counter()
        value = step()
        host = min(host, time.perf_counter() - before)
    wait(value)
    wall = time.perf_counter() - start
    return {"wall": 1e3 * wall / steps, "CPU": 1e3 * (time.process_time() - cpu) / steps, "host": 1e3 * host}


def torch_step(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, capture: bool) -> tuple[Any, Any]:
    """(a call that makes a step and returns its loss, one that waits)."""
    net = nn.Sequential(*(nn.Linear(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in model))
    net.load_state_dict(model.state_dict())
    net.to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    function = lazytpu.step(step, strict=True) if capture else step
    return partial(function, x.to("tpu"), y.to("tpu")), lambda _: lazytpu.sync()


def jax_step(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
    """The same in JAX."""
    params = [(jnp.array(m.weight.detach()), jnp.array(m.bias.detach())) for m in model if isinstance(m, nn.Linear)]
    inputs, targets = jnp.array(x), jnp.array(y)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for i, (weight, bias) in enumerate(params):
            x = jnp.einsum("bi,oi->bo", x, weight) + bias
            if i + 1 < len(params):
                x = jax.nn.relu(x)
        return jnp.mean((x - y) ** 2)

    @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def update(params: Any, first: Any, second: Any, count: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        count = count + 1
        one, two = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
        first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, grads)
        second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, grads)
        params = jax.tree.map(
            lambda p, m, v: p * (1 - LR * DECAY) - LR / one * m / (jnp.sqrt(v) / jnp.sqrt(two) + EPS),
            params, first, second,
        )  # fmt: skip
        return params, first, second, count, loss

    state: Any = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.float32(0))

    def step() -> Any:
        nonlocal state
        *state, loss = update(*state, inputs, targets)
        return loss

    return step, lambda loss: loss.block_until_ready()


if __name__ == "__main__":
    exit_with(main)
