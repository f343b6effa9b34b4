"""A Wasserstein GAN with gradient penalty on points of a ring: three steps of the critic for one of the generator."""

import torch
from clock import clock, device, on_device, report
from torch import nn

torch.manual_seed(0)


def mlp(inner, outer):
    return nn.Sequential(
        nn.Linear(inner, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outer)
    )


generator, critic = on_device(mlp(8, 2)), on_device(mlp(2, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def real(count=64):
    angle = 6.283 * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1).to(device)


for _ in clock(60):
    for _ in range(3):
        x = real()
        fake = generator(torch.randn(64, 8, device=device)).detach()
        mixed = torch.lerp(fake, x, torch.rand(64, 1, device=device)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss_c = critic(fake).mean() - critic(x).mean() + 10 * penalty
        optimizer_c.zero_grad()
        loss_c.backward()
        optimizer_c.step()
    loss_g = -critic(generator(torch.randn(64, 8, device=device))).mean()
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    losses = loss_c.item(), loss_g.item()
report()
