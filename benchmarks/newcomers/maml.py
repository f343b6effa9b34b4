"""MAML on sine waves: an inner loop of gradient steps, and the gradient through it."""

import math

import torch
import torch.nn.functional as F
from clock import clock, device, on_device, report
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = on_device(nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def points(height, shift, count=10):
    x = 10 * torch.rand(count, 1) - 5
    return x.to(device), (height * (x + shift).sin()).to(device)


for _ in clock(40):
    losses = []
    for _ in range(4):
        height, shift = 0.1 + 4.9 * torch.rand(()), math.pi * torch.rand(())
        x, y = points(height, shift)
        weights: dict[str, torch.Tensor] = dict(model.named_parameters())
        for _ in range(5):
            inner = F.mse_loss(functional_call(model, weights, (x,)), y)
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: w - 0.01 * g for (name, w), g in zip(weights.items(), gradients)}
        x, y = points(height, shift)
        losses.append(F.mse_loss(functional_call(model, weights, (x,)), y))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
report()
