"""A two-layer BERT that classifies sentences, in the Trainer of transformers, with evaluation and accumulation."""

import tempfile

import torch
from clock import device, on_device, report, steps_of, tick
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)
words = torch.randint(10, 300, (400, 20))
labels = (words[:, 0] > words[:, 1]).long()


class Sentences(torch.utils.data.Dataset):
    def __init__(self, first, last):
        self.rows = range(first, last)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        i = self.rows[i]
        return {"input_ids": words[i], "attention_mask": torch.ones(20).long(), "labels": labels[i]}


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        tick()


config = BertConfig(  # and two labels
    vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=16, gradient_accumulation_steps=2, max_steps=steps_of(22), logging_steps=1,
        eval_strategy="steps", eval_steps=11, save_strategy="no", report_to=[], disable_tqdm=True,
        use_cpu=device == "cpu",
    )  # fmt: skip
    trainer = Trainer(
        on_device(BertForSequenceClassification(config)), arguments, train_dataset=Sentences(0, 352),
        eval_dataset=Sentences(352, 400), callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
report()
