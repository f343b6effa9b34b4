"""transformers.Trainer: trains, evaluates, saves and resumes on the device."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from tests.frontend.libraries.llama import llama

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of token ids that are their own labels."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(0, 32, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row}


def make(folder: Path, dropout: float = 0.0, **options: Any) -> Trainer:
    model = llama(attention_dropout=dropout)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        save_steps=2,
        logging_steps=1,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
        seed=0,
        **options,
    )
    return Trainer(model, arguments, train_dataset=Tokens(), eval_dataset=Tokens())


def parameters(trainer: Trainer) -> list[nn.Parameter]:
    assert trainer.model is not None
    return list(trainer.model.parameters())


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_training_and_evaluation_agree_with_the_cpu(tmp_path: Path) -> None:
    def run(device: str, **options: Any) -> tuple[list[float], float]:
        trainer = make(tmp_path / device, **options)
        assert trainer.args.device.type == device
        assert {p.device.type for p in parameters(trainer)} == {device}
        trainer.train()
        predicted = trainer.predict(Tokens())  # pyright: ignore[reportArgumentType]
        assert predicted.predictions.shape == (16, 6, 32)
        return losses(trainer), trainer.evaluate()["eval_loss"]

    got, expected = run("tpu"), run("cpu", use_cpu=True)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-3, atol=1e-4)


def test_training_resumes_where_it_was(tmp_path: Path) -> None:
    """With dropout, so that the device's random numbers have to continue as well."""
    uninterrupted = make(tmp_path, dropout=0.3)
    uninterrupted.train()
    checkpoint = str(tmp_path / "checkpoint-2")
    assert {"model.safetensors", "optimizer.pt", "rng_state.pth"} <= set(os.listdir(checkpoint))
    resumed = make(tmp_path, dropout=0.3)
    torch.rand(7, device="tpu")
    resumed.train(resume_from_checkpoint=checkpoint)
    assert losses(resumed) == losses(uninterrupted)
    for a, b in zip(parameters(uninterrupted), parameters(resumed), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize(
    "options", [{"bf16": True}, {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}]
)
def test_other_options_of_training(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = make(tmp_path, **options)
    trainer.train()
    assert all(abs(loss - math.log(32)) < 0.1 for loss in losses(trainer)), "near that of chance"


def test_saved_models_are_loaded_onto_the_device(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.save_model(str(tmp_path / "model"))
    expected = [p.detach().cpu() for p in parameters(trainer)]
    for where in ("tpu", "auto"):
        loaded = LlamaForCausalLM.from_pretrained(tmp_path / "model", device_map=where)
        assert {p.device.type for p in loaded.parameters()} == {"tpu"}
        assert all(torch.equal(p.detach().cpu(), e) for p, e in zip(loaded.parameters(), expected, strict=True))
