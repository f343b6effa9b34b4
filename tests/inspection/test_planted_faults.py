"""Scripts as users write them, each with one fault: the tools lead to its line and its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import zygote

HEAD = """import torch, lazytpu
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
"""
HIDDEN_READ = """
class Meter:
    total = 0.0
    def update(self, value):
        self.total += value.detach().item()  # FAULT
meter = Meter()
for step in range(4):
    loss = model(torch.randn(8, 16).to("tpu")).square().mean()
    meter.update(loss)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
print(lazytpu.waits())
"""
GROWING_LIST = """
class Trainer:
    def __init__(self):
        self.log = {"outputs": []}
    def step(self, x):
        output = model(x)
        output.square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        self.log["outputs"].append(output)
def main():
    trainer = Trainer()
    lazytpu.memory()
    for step in range(5):
        trainer.step(torch.randn(8, 16).to("tpu"))
    lazytpu.sync()
    print(lazytpu.memory(holders=True))
main()
"""
NUMBER_THAT_SHAPES = """
for step in range(5):
    k = int((0.5 + 0.1 * step) * 16)
    best = model(torch.randn(8, 64, 16).to("tpu")).sum(-1).topk(k).values  # FAULT
    best.square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    lazytpu.mark_step()
print(lazytpu.explain())
"""
SIZE_THAT_IS_REFUSED = """
def spectrum(x):
    return torch.fft.fft(model(x), dim=0).abs().sum()  # FAULT
for length in (40, 50, 44):
    with torch.no_grad():
        spectrum(torch.randn(length, 16).to("tpu")).item()  # UPLOAD
print(lazytpu.explain())
"""
RESUMED_OPTIMIZER = """
def step():
    model(torch.randn(8, 16).to("tpu")).square().mean().backward()
    optimizer.step()  # FAULT
    optimizer.zero_grad()
step()
for state in optimizer.state.values():
    state["step"] = torch.full((3,), 2.0, device="tpu").cumsum(0)[0]
lazytpu.mark_step()
for _ in range(3):
    step()
print(lazytpu.waits())
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (HIDDEN_READ, ["FAULT, `value.detach().item()`: 4 times", "read it after optimizer.step()"]),
        (GROWING_LIST, ["Trainer.log['outputs']", "change since the report before", "5 graphs of autograd alive"]),
        (NUMBER_THAT_SHAPES, ["`topk` at FAULT was", "(a number that changes)", "fix: keep it fixed"]),
        (
            SIZE_THAT_IS_REFUSED,
            ["the tensor uploaded at UPLOAD, argument", "`fft` at FAULT needs one size", "fix: pad to one size"],
        ),
        (RESUMED_OPTIMIZER, ["FAULT, `optimizer.step()`", "`AdamW.step()` reads state['step']", "keep it on the CPU"]),
    ],
    ids=["read", "list", "number", "size", "optimizer"],
)
def test_tools_lead_to_the_line_and_the_fix(script: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(HEAD + script)
    ran = zygote.run([str(file)], cwd=tmp_path, check=True)
    lines = list(enumerate(file.read_text().splitlines(), 1))
    for words_of_fault in words:
        expected = words_of_fault
        for mark in ("FAULT", "UPLOAD"):
            expected = expected.replace(mark, f"train.py:{next((n for n, text in lines if mark in text), 0)}")
        assert expected in ran.stdout, ran.stdout
