"""A neural ODE: a vector field is fitted to a pendulum's path, through 40 steps of the classical Runge-Kutta method."""

import torch
from clock import clock, device, on_device, report
from torch import nn

torch.manual_seed(0)
field = on_device(nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2)))
optimizer = torch.optim.Adam(field.parameters(), lr=3e-3)


def solve(f, x, steps=40, h=0.1):
    path = [x]
    for _ in range(steps):
        k1 = f(x)
        k2 = f(x + h / 2 * k1)
        k3 = f(x + h / 2 * k2)
        k4 = f(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(x)
    return torch.stack(path)


begin = 2 * torch.rand(16, 2, device=device) - 1
truth = solve(lambda x: torch.stack([x[:, 1], -x[:, 0].sin()], 1), begin)
for _ in clock(40):
    loss = (solve(field, begin) - truth).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
report()
