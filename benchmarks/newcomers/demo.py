"""The demo, examples/train_gpt.py: its model, its text and its training step, with the loss read at every step."""

import sys
from pathlib import Path

import torch
from clock import clock, device, on_device, report

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt  # pyright: ignore[reportMissingImports]

sys.argv[1:], wanted = ["--device", device], sys.argv[1:]
args = train_gpt.arguments()
sys.argv[1:] = wanted
text, _ = train_gpt.read_text()
torch.manual_seed(args.seed)
model = on_device(train_gpt.GPT(args.window, args.layers, args.heads, args.width, args.dropout))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
batches = train_gpt.batches(text, args, args.seed, 1 << 30)
for _ in clock(30):
    train_gpt.train_step(model, optimizer, *next(batches)).item()
report()
