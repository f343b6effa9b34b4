"""A denoising diffusion model of points on a spiral, with a moving average of its weights, and its sampler."""

import copy
import math

import torch
import torch.nn.functional as F
from clock import clock, device, on_device, report
from torch import nn

torch.manual_seed(0)
ROUNDS = 40
beta = torch.linspace(1e-4, 0.05, ROUNDS, device=device)
kept = torch.cumprod(1 - beta, 0)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(2, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(4)
        )
        self.leave = nn.Linear(width, 2)

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(-torch.arange(8, device=t.device) / 2)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x + time)
        return self.leave(x)


model = on_device(Denoiser())
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in clock(60):
    angle = 3 * math.pi * torch.rand(128)
    x = torch.stack([angle * angle.cos(), angle * angle.sin()], 1).to(device) / 6
    t = torch.randint(0, ROUNDS, (128,), device=device)
    noise = torch.randn_like(x)
    noisy = kept[t].sqrt()[:, None] * x + (1 - kept[t]).sqrt()[:, None] * noise
    loss = F.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.02)
    loss.item()

with torch.no_grad():
    x = torch.randn(64, 2, device=device)
    for t in reversed(range(ROUNDS)):
        guess = average(x, torch.full((64,), t, device=device))
        x = (x - beta[t] / (1 - kept[t]).sqrt() * guess) / (1 - beta[t]).sqrt()
        if t:
            x = x + beta[t].sqrt() * torch.randn_like(x)
print(x.mean().item())
report()
