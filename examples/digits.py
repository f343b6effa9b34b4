"""Recognise handwritten digits: convolutions, BatchNorm and SGD with momentum, on scikit-learn's bundled images.

pip install scikit-learn
python examples/digits.py                 # on "tpu"
python examples/digits.py --device cpu    # the same file on stock PyTorch
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    raise SystemExit("examples/digits.py takes its images from scikit-learn: pip install scikit-learn") from None


def images() -> tuple[Tensor, Tensor]:
    """1797 images (1797, 1, 8, 8) of f32 in 0..1 and their digits (1797,) of i64, in a fixed random order."""
    data: Any = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    return pixels[order], torch.from_numpy(data.target).long()[order]


def network() -> nn.Sequential:
    def stage(channels: int, more: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, more, 3, padding=1, bias=False), nn.BatchNorm2d(more), nn.ReLU()]

    return nn.Sequential(
        *stage(1, 32),
        *stage(32, 32),
        nn.MaxPool2d(2),
        *stage(32, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace, engine: Any) -> list[float]:
    """Train for `args.epochs`; returns the loss of the first step and of the last step of each epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    steps = len(x) // args.batch  # the partial batch at the end is left out: its shape would be another program
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps)
    shuffle = torch.Generator().manual_seed(args.seed)
    losses: list[float] = []
    for epoch in range(args.epochs):
        chosen = torch.randperm(len(x), generator=shuffle)
        for step in range(steps):
            batch = chosen[step * args.batch : (step + 1) * args.batch]
            loss = F.cross_entropy(model(x[batch].to(args.device)), y[batch].to(args.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if engine:
                engine.mark_step()
            if not losses:
                losses.append(loss.item())
        losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, device: str) -> float:
    model.eval()
    return (model(x.to(device)).argmax(dim=1) == y.to(device)).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Handwritten digits.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=("tpu", "cpu"), default="tpu", help="cpu is stock PyTorch")
    parser.add_argument("--epochs", type=int, default=15, help="times through the training images")
    parser.add_argument("--batch", type=int, default=64, help="images in a step")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of the images")
    args = parser.parse_args()
    engine: Any = None
    if args.device == "tpu":
        import lazytpu as engine

    x, y = images()
    held_out = len(x) // 5
    torch.manual_seed(args.seed)
    model = network().to(args.device)
    start = time.perf_counter()
    losses = train(model, x[held_out:], y[held_out:], args, engine)
    found = accuracy(model, x[:held_out], y[:held_out], args.device)
    print(f"{100 * found:.1f} % of {held_out} test images are right, after {time.perf_counter() - start:.0f} s")
    compiles = engine.metrics()["compiles"] if engine else 0
    print(json.dumps({"losses": losses, "test_accuracy": found, "compiles": compiles}))


if __name__ == "__main__":
    main()
