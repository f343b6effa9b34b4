"""A small ResNet on drawn digits, with a learning rate schedule, and validation after each epoch."""

import torch
import torch.nn.functional as F
from clock import clock, device, on_device, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
shapes = (torch.rand(10, 1, 16, 16) > 0.6).float()  # ten patterns stand for ten digits
labels = torch.randint(0, 10, (704,))
images = shapes[labels].roll(1, 2) + 0.4 * torch.randn(704, 1, 16, 16)
training = DataLoader(TensorDataset(images[:512], labels[:512]), batch_size=32, shuffle=True)
validation = DataLoader(TensorDataset(images[512:], labels[512:]), batch_size=64)


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


model = on_device(
    nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
batches = iter(())
for step in clock(48):
    try:
        x, y = next(batches)
    except StopIteration:  # an epoch
        if step:
            model.eval()
            with torch.no_grad():
                right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in validation)
            print(step, right / 192)
            model.train()
        batches = iter(training)
        x, y = next(batches)
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    loss.item()
report()
