"""Serves requests of many lengths with a small language model, by continuous batching of Hugging Face's transformers.

Requests come one after the other, and each wants a number of tokens of its own. Those that are there share a batch: a
step computes the prompts of new requests, or parts of long ones, and the next token of each that is running. Keys and
values are in pages of one cache. So each step has other sizes; with `lazytpu.options.buckets`, few programs serve them.

The model is a Llama with random weights: any causal language model of transformers is served in this way.

    python examples/serving.py
    python examples/serving.py --requests 64 --device cpu
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

VOCABULARY = 128


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu", help="tpu (default) or cpu")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--longest", type=int, default=100, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens that a request wants")
    parser.add_argument("--at-once", type=int, default=8, help="requests in a batch")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sample", action="store_true", help="draw tokens instead of taking the best")
    return parser.parse_args()


def model_of(layers: int, width: int) -> Any:
    """A Llama with random weights, the same each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config).eval()


def serve(model: Any, args: argparse.Namespace) -> list[list[int]]:
    """The tokens that each request gets."""
    chosen = random.Random(0)
    lengths = [chosen.randint(2, args.longest) for _ in range(args.requests)]
    prompts = [[chosen.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    generation = GenerationConfig(do_sample=args.sample, eos_token_id=-1)
    batching = ContinuousBatchingConfig(
        page_size=16,
        num_blocks=args.at_once * -(-(args.longest + args.tokens) // 16),
        max_batch_tokens=128,
        max_requests_per_batch=args.at_once,
    )
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching) as server:
        wanted = [
            server.add_request(prompt, max_new_tokens=chosen.randint(1, args.tokens), eos_token_id=-1)
            for prompt in prompts
        ]
        answers: dict[str | None, list[int]] = {}
        while len(answers) < len(prompts):
            answer = server.get_result(timeout=1)
            if answer is not None and answer.error:
                raise SystemExit(f"request {answer.request_id} failed: {answer.error}")
            if answer is not None and answer.is_finished():
                answers[answer.request_id] = answer.generated_tokens
            elif answer is None and not server.is_running():
                raise SystemExit("the server has ended")
    return [answers[name] for name in wanted]


def main() -> None:
    args = arguments()
    if args.device == "tpu":
        import lazytpu

        lazytpu.options.buckets = "auto"
    model = model_of(args.layers, args.width).to(args.device)
    report: dict[str, Any] = {}
    for run in ("first", "again"):  # the first one compiles
        start = time.perf_counter()
        answers = serve(model, args)
        seconds = time.perf_counter() - start
        tokens = sum(map(len, answers))
        print(f"{run}: {len(answers)} requests, {tokens} tokens in {seconds:.1f} s: {tokens / seconds:.0f} tokens/s")
        report |= {f"{run}_tokens_per_second": tokens / seconds, "tokens": tokens, "answers": answers}
    if args.device == "tpu":
        report["programs"] = len(lazytpu.explain())
        print(f"{report['programs']} programs, made because of: {lazytpu.explain().counts}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
