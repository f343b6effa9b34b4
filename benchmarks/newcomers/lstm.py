"""A language model of characters: an embedding, two LSTM layers, truncated backpropagation through time."""

import string

import torch
import torch.nn.functional as F
from clock import clock, device, on_device, report
from torch import nn

torch.manual_seed(0)
text = (string.ascii_lowercase + string.digits + " .,;") * 400
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
data = data[: len(data) // 12 * 12].view(12, -1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(letters), 48)
        self.lstm = nn.LSTM(48, 96, num_layers=2, batch_first=True)
        self.head = nn.Linear(96, len(letters))

    def forward(self, x, state):
        y, state = self.lstm(self.embedding(x), state)
        return self.head(y), state


model = on_device(Model())
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
state = (torch.zeros(2, 12, 96, device=device), torch.zeros(2, 12, 96, device=device))
for step in clock(50):
    window = data[:, 24 * step : 24 * step + 25].to(device)
    state = tuple(s.detach() for s in state)
    logits, state = model(window[:, :-1], state)
    loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    loss.item()
report()
