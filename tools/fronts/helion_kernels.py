"""Kernels of Helion, in the style of its examples."""

from __future__ import annotations

import helion
import helion.language as hl
import torch


@helion.kernel()
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel()
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            total = torch.addmm(total, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = total
    return out


@helion.kernel()
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :]
        exps = torch.exp(rows - torch.amax(rows, dim=1, keepdim=True))
        out[tile, :] = exps / torch.sum(exps, dim=1, keepdim=True)
    return out


@helion.kernel()
def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :].to(torch.float32)
        inverse = torch.rsqrt(torch.mean(rows * rows, dim=-1) + eps)
        out[tile, :] = (rows * inverse[:, None] * gain[:].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel()
def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        gate = x[tile].to(torch.float32)
        out[tile] = (gate * torch.sigmoid(gate)).to(x.dtype) * y[tile]
    return out
