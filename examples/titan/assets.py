"""Write a small tokenizer and a small data set for TorchTitan's debug models, from text files and without a download:

    python examples/titan/assets.py out/titan docs/*.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2000  # tokens; the debug models have 2,048
SAMPLE = 2000  # characters
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where tokenizer/ and c4_test/ go")
    parser.add_argument("texts", type=Path, nargs="+", help="text files")
    arguments = parser.parse_args()
    texts = [path.read_text() for path in arguments.texts]
    write_tokenizer(arguments.folder / "tokenizer", texts)
    write_samples(arguments.folder / "c4_test", texts)


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Train byte-level byte pair encoding on the texts, and write it as Hugging Face's files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[BEGIN, END], initial_alphabet=alphabet)  # pyright: ignore
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": BEGIN, "eos_token": END, "add_bos_token": True, "add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    )


def write_samples(folder: Path, texts: list[str]) -> None:
    """Write pieces of the texts as JSON lines, the format of Titan's data set c4_test."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data.json").open("w") as file:
        for text in texts:
            for start in range(0, len(text), SAMPLE):
                file.write(json.dumps({"text": text[start : start + SAMPLE]}) + "\n")


if __name__ == "__main__":
    main()
