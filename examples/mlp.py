import sys

import torch

import lazytpu

device = sys.argv[1] if len(sys.argv) > 1 else "tpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU())
model.append(torch.nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.linspace(-3, 3, 256).unsqueeze(1).to(device)
y = torch.sin(2 * x)

for step in range(201):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    lazytpu.mark_step()  # the step ends here: one program, compiled once
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.5f}, {lazytpu.metrics()['compiles']} compiles")
