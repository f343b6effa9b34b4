"""vLLM's engine on the device, by plugins/vllm: tokens beside transformers', and programs."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import tokenizers
import torch
import transformers

import lazytpu

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM and its imports
NEW = 12  # tokens of each answer
VOCABULARY = 512  # tokens: a tiny model
STARTING = 300  # seconds for the server
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}


def saved(path: Path, kind: str, **settings: Any) -> Path:
    """Save a model with random weights, large enough that its logits differ clearly."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        **settings,
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(path)
    return path


def started(folder: Path, **settings: Any) -> Any:
    """Return vLLM's engine for a saved model, in this process."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import LLM

    sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_memory_bytes": 8 << 20}
    return LLM(str(folder), **{"skip_tokenizer_init": True, "dtype": "float32", **sizes, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    return started(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of vLLM's OpenAI server, which runs the engine in another process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sizes = ("--max-model-len", "256", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(8 << 20))
    program = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--skip-tokenizer-init")
    where = ("--model", str(folder), "--served-model-name", "llama", "--host", "127.0.0.1", "--port", str(port))
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*program, *where, *sizes, "--dtype", "float32"], env=environment, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(STARTING):
            with suppress(OSError):
                urllib.request.urlopen(f"{address}/health").close()
                break
            assert process.poll() is None, (folder / "server.log").read_text()[-4000:]
            time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()


def complete(address: str, prompt: list[int]) -> list[int]:
    """Ask the server for the greedy tokens that follow a prompt."""
    asked = {"model": "llama", "prompt": prompt, "temperature": 0, "max_tokens": NEW, "ignore_eos": True}
    body = json.dumps({**asked, "return_token_ids": True, "detokenize": False}).encode()
    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


def sampling(**settings: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**{"temperature": 0, "max_tokens": NEW, "ignore_eos": True, "detokenize": False, **settings})


def generate(llm: Any, prompts: list[list[int]], seeds: list[int | None] | None = None, **settings: Any) -> Any:
    """Return the tokens of each answer. Each request has its own seed, if `seeds` names them."""
    rows = [sampling(seed=seed, **settings) for seed in seeds] if seeds else sampling(**settings)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], rows, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


Logits = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]
"""(logits, prompt, tokens of the answer so far) to the logits of which the next token has the largest."""


def greedy(model: Any, prompts: list[list[int]], changed: Logits = lambda logits, *_: logits) -> list[list[int]]:
    """Return transformers' tokens, one prompt at a time on the CPU."""
    answers = []
    for prompt in prompts:
        answer: list[int] = []
        with torch.no_grad():
            for _ in range(NEW):
                logits = model(torch.tensor([prompt + answer])).logits[0, -1]
                answer.append(int(changed(logits, prompt, answer).argmax()))
        answers.append(answer)
    return answers


def biased(bias: dict[int, float]) -> Logits:
    added = torch.zeros(VOCABULARY)
    added[list(bias)] = torch.tensor(list(bias.values()))
    return lambda logits, *_: logits + added


def only(tokens: list[int]) -> Logits:
    return biased(dict.fromkeys(set(range(VOCABULARY)) - set(tokens), -torch.inf))


def penalized(presence: float = 0, frequency: float = 0, repetition: float = 1) -> Logits:
    """The penalties of https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html."""

    def changed(logits: torch.Tensor, prompt: list[int], answer: list[int]) -> torch.Tensor:
        counts = torch.zeros(VOCABULARY)
        for token, count in Counter(answer).items():
            counts[token] = count
        seen = counts > 0
        seen[prompt] = True
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        return torch.where(seen, repeated, logits) - frequency * counts - presence * (counts > 0)

    return changed


EVERY_SEVENTH, FAVOURED = list(range(3, VOCABULARY, 7)), {5: 9.0, 44: 11.0, 300: -100.0}
OPTIONS: dict[str, tuple[dict[str, Any], Logits]] = {
    "bias": ({"logit_bias": FAVOURED}, biased(FAVOURED)),
    "allowed tokens": ({"allowed_token_ids": EVERY_SEVENTH}, only(EVERY_SEVENTH)),
    "presence": ({"presence_penalty": 1.9}, penalized(presence=1.9)),
    "frequency": ({"frequency_penalty": 1.7}, penalized(frequency=1.7)),
    "frequency, rewarded": ({"frequency_penalty": -1.5}, penalized(frequency=-1.5)),
    "repetition": ({"repetition_penalty": 1.6}, penalized(repetition=1.6)),
    "all penalties": (
        {"presence_penalty": 0.9, "frequency_penalty": 0.7, "repetition_penalty": 1.4},
        penalized(0.9, 0.7, 1.4),
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_logits(llm: Any, reference: Any, option: str) -> None:
    settings, changed = OPTIONS[option]
    requests = prompts(4, 70, 1, 33, seed=20)
    assert generate(llm, requests, **settings) == greedy(reference, requests, changed)


def test_options_of_logits_in_one_batch(llm: Any, reference: Any) -> None:
    requests = prompts(*range(2, 2 + 3 * len(OPTIONS), 3), 5, seed=21)
    rows = [sampling(**settings) for settings, _ in OPTIONS.values()] + [sampling()]
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in requests], rows, use_tqdm=False)
    expected = [greedy(reference, [p], f)[0] for p, (_, f) in zip(requests, OPTIONS.values(), strict=False)]
    expected += greedy(reference, requests[-1:])
    assert [list(answer.outputs[0].token_ids) for answer in answers] == expected


def test_answers_stop_at_tokens_but_not_before_the_least(llm: Any, reference: Any) -> None:
    requests, stops, least = prompts(4, 9, 30, seed=22), list(range(0, VOCABULARY, 2)), 5

    def unstopped(logits: torch.Tensor, prompt: list[int], answer: list[int]) -> torch.Tensor:
        return biased(dict.fromkeys(stops, -torch.inf))(logits) if len(answer) < least else logits

    expected = []
    for tokens in greedy(reference, requests, unstopped):
        end = next((i for i, token in enumerate(tokens) if token % 2 == 0), NEW - 1)
        expected.append(tokens[: end + 1])
    assert generate(llm, requests, stop_token_ids=stops, min_tokens=least) == expected
    assert any(len(answer) < NEW for answer in expected)


def test_log_probabilities(llm: Any, reference: Any) -> None:
    """Of the answer's tokens, before options change the logits, and of the prompt's."""
    requests = prompts(4, 21, 90, seed=23)
    rows = sampling(logprobs=3, prompt_logprobs=2, logit_bias=FAVOURED)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in requests], rows, use_tqdm=False)
    for prompt, answer in zip(requests, answers, strict=True):
        tokens = prompt + list(answer.outputs[0].token_ids)
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
        assert answer.prompt_logprobs[0] is None
        places = [*answer.prompt_logprobs[1:], *answer.outputs[0].logprobs]
        for at, (row, token, likely) in enumerate(zip(expected, tokens[1:], places, strict=False)):
            count = 2 if at < len(prompt) - 1 else 3
            assert set(likely) == {token, *row.topk(count).indices.tolist()}
            for one, known in likely.items():
                assert known.logprob == pytest.approx(row[one].item(), abs=1e-3)
                assert known.rank == int((row > row[one]).sum()) + 1
        assert len(places) == len(tokens) - 1


@pytest.fixture(scope="module")
def worded(folder: Path) -> Any:
    """vLLM's engine for the same model, with a tokenizer whose words are w0, w1, ..."""
    words = tokenizers.models.WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = saved(folder / "worded", "Llama")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(path)
    return started(path, skip_tokenizer_init=False, enforce_eager=True)


def test_words_stop_answers_or_are_left_out(worded: Any, reference: Any) -> None:
    (prompt,) = prompts(9, seed=25)
    (expected,) = greedy(reference, [prompt])

    def asked(**settings: Any) -> Any:
        rows = sampling(detokenize=True, **settings)
        return worded.generate([{"prompt_token_ids": prompt}], rows, use_tqdm=False)[0].outputs[0]

    stop = next(token for token in expected[3:] if token not in expected[:3])
    stopped = asked(stop=[f"w{stop} "])
    assert stopped.text.split() == [f"w{token}" for token in expected[: expected.index(stop)]]
    first, second = expected[:2]

    def without(logits: torch.Tensor, prompt: list[int], answer: list[int]) -> torch.Tensor:
        bad = [stop, *([second] if answer[-1:] == [first] else [])]
        return biased(dict.fromkeys(bad, -torch.inf))(logits)

    left_out = asked(bad_words=[f"w{stop}", f"w{first} w{second}"])
    assert list(left_out.token_ids) == greedy(reference, [prompt], without)[0]


def test_several_answers_have_seeds_of_their_own(llm: Any) -> None:
    (prompt,) = prompts(12, seed=24)
    (answer,) = llm.generate([{"prompt_token_ids": prompt}], sampling(n=3, temperature=0.9, seed=5), use_tqdm=False)
    several = [list(output.token_ids) for output in answer.outputs]
    assert several == generate(llm, [prompt] * 3, [5, 6, 7], temperature=0.9)
    assert len(set(map(tuple, several))) == 3


@pytest.mark.parametrize(
    "lengths",
    [(4, 7, 1), (100, 130), (3, 60, 5, 8, 17, 33, 2, 40, 11)],
    ids=["short", "prefilled in chunks", "more than run at once"],
)
def test_tokens_are_transformers(llm: Any, reference: Any, lengths: tuple[int, ...]) -> None:
    assert_caches_are_apart(llm)
    requests = prompts(*lengths)
    assert generate(llm, requests) == greedy(reference, requests)
    assert lazytpu.metrics()["cpu_fallbacks"] == 0


def test_cached_prefixes(llm: Any, reference: Any) -> None:
    (prefix,) = prompts(50, seed=1)
    generate(llm, [prefix])
    requests = [prefix + tail for tail in prompts(5, 9, seed=2)]
    assert generate(llm, requests) == greedy(reference, requests)


def test_warm_engine_compiles_nothing_for_new_batches(llm: Any) -> None:
    """Whatever the numbers of requests and tokens, greedy and not."""
    numbers = random.Random(4)
    before = lazytpu.metrics()["compiles"]
    for turn in range(12):
        lengths = [numbers.choice((1, 2, 5, 9, 20, 40, 70, 100)) for _ in range(numbers.randint(1, 8))]
        drawn = [numbers.choice(({}, {"temperature": 0.8, "top_p": 0.9})) for _ in lengths]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts(*lengths, seed=turn)]
        llm.generate(requests, [sampling(**settings) for settings in drawn], use_tqdm=False)
    assert lazytpu.metrics()["compiles"] == before


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Qwen3", {"head_dim": 16}),
        ("Gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16}),
        ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("Qwen2Moe", {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 96, "norm_topk_prob": False}),
        ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "head_dim": 16}),
    ],
    ids=[
        "Qwen3",
        "Gemma2, with a sliding window and a soft cap",
        "Mixtral",
        "Qwen2Moe, with a shared expert",
        "Qwen3Moe",
    ],
)
def test_tokens_of_other_models(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    from vllm.distributed.parallel_state import destroy_model_parallel

    destroy_model_parallel()  # a process whose first model has no experts has no group for them
    path, requests = saved(tmp_path, kind, **settings), prompts(4, 60, 33)
    reference = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(path).eval()
    engine = started(path, enforce_eager=True)
    assert_caches_are_apart(engine)
    assert generate(engine, requests) == greedy(reference, requests)


def assert_caches_are_apart(engine: Any) -> None:
    """Check that a write to the cache of a layer converts and copies no other memory."""
    runner = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    memory = {id(cache._base): cache._base for cache in runner.kv_caches}
    assert len(memory) == len(runner.kv_caches)
    assert {base.dtype for base in memory.values()} == {torch.float32}
    assert sum(base.nbytes for base in memory.values()) == runner.kv_cache_config.kv_cache_tensors[0].size


def test_layers_of_two_groups_share_their_memory() -> None:
    """A block belongs to one group at a time."""
    from lazytpu_vllm.cache import allocate
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheLayout,
        KVCacheTensor,
        SlidingWindowSpec,
    )

    sizes = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
    full, sliding = FullAttentionSpec(**sizes), SlidingWindowSpec(**sizes, sliding_window=32)
    page, blocks = full.page_size_bytes, 5

    def caches(offset: int) -> list[torch.Tensor]:
        """Return the caches of two layers of each group; those of the second group begin at `offset`."""
        where = {"size": 2 * page * blocks + offset, "layer_stride": page * blocks, "block_stride": page}
        tensors = [
            KVCacheTensor(layers=["a", "b"], **where),
            KVCacheTensor(layers=["c", "d"], offset=offset, **where),
        ]
        groups = [KVCacheGroupSpec(["a", "b"], full), KVCacheGroupSpec(["c", "d"], sliding)]
        config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)
        return list(allocate(config, torch.device("tpu"), KVCacheLayout.LBNHC).values())

    first, second, other, last = caches(0)
    first[1, 0] = 7
    last[4, 1] = 3
    assert other[1, 0].eq(7).all() and second[4, 1].eq(3).all() and not second[1, 0].any()
    *_, second, other, last = caches(page)  # each overlaps two of the other group
    second[0] = 5
    assert other[blocks - 1].eq(5).all() and not last.any()


def test_repeated_batches_compile_nothing(llm: Any) -> None:
    batches = [prompts(*lengths, seed=3 + turn) for turn, lengths in enumerate([(5, 9), (20,), (3, 4, 30)])]
    for _ in range(2):
        answers = [generate(llm, batch) for batch in batches]
    before = lazytpu.metrics()["compiles"]
    assert [generate(llm, batch) for batch in batches] == answers
    assert lazytpu.metrics()["compiles"] == before


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1.2}],
    ids=str,
)
def test_sampling_repeats_with_its_seed(llm: Any, settings: dict[str, Any]) -> None:
    requests = prompts(5, 5, 5, seed=9)
    answers = generate(llm, requests, temperature=0.8, seed=7, **settings)
    assert generate(llm, requests, temperature=0.8, seed=7, **settings) == answers
    assert generate(llm, requests, temperature=0.8, seed=8, **settings) != answers


def test_seed_gives_the_same_tokens_in_any_batch(llm: Any) -> None:
    """Prompts of one step and of several, beside requests without a seed."""
    requests = prompts(5, 100, 33, 1, 70, seed=12)
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 9, "top_p": 0.9}
    seeds: list[int | None] = list(range(len(requests)))
    alone = [generate(llm, [prompt], [seed], **settings)[0] for prompt, seed in zip(requests, seeds, strict=True)]
    batch = generate(llm, prompts(30, 77, seed=13) + requests[::-1], [None, None, *seeds[::-1]], **settings)
    assert batch[2:][::-1] == alone


def test_answers_end_where_the_model_does(llm: Any, reference: Any) -> None:
    """The model has 256 positions."""
    requests = prompts(1, 255, 250, seed=14)
    answers = generate(llm, requests)
    assert [len(answer) for answer in answers] == [NEW, 1, 6]
    expected = greedy(reference, requests[:1]) + [
        tokens[: len(answer)] for tokens, answer in zip(greedy(reference, requests[1:]), answers[1:], strict=True)
    ]
    assert answers == expected


def test_aborted_requests_leave_the_others_alone(llm: Any, reference: Any) -> None:
    engine, requests, answers = llm.llm_engine, prompts(20, 90, 5, 130, 9, 40, 17, 33, 21, seed=15), {}
    for name, prompt in enumerate(requests):
        engine.add_request(str(name), {"prompt_token_ids": prompt}, sampling())
    aborted = {2: ["1", "3"], 5: ["0", "8"]}  # in prompts, and after them
    step = 0
    while engine.has_unfinished_requests():
        for answer in engine.step():
            if answer.finished:
                answers[int(answer.request_id.partition("-")[0])] = list(answer.outputs[0].token_ids)
        step += 1
        engine.abort_request(aborted.get(step, []))
    kept = [2, 4, 5, 6, 7]
    assert sorted(answers) == kept
    assert [answers[name] for name in kept] == greedy(reference, [requests[name] for name in kept])


def test_preempted_requests_go_on_as_before(folder: Path, reference: Any) -> None:
    """The cache has 17 blocks of 16 tokens: three of the requests at most."""
    small = {"kv_cache_memory_bytes": 18 * 16 * 2 * 2 * 2 * 16 * 4, "enable_prefix_caching": False}
    llm = started(folder, enforce_eager=True, disable_log_stats=False, **small)
    requests, settings = prompts(60, 59, 58, 60, 60, seed=16), {"temperature": 0.9}
    seeds: list[int | None] = list(range(len(requests)))
    alone = [generate(llm, [prompt], [seed], **settings)[0] for prompt, seed in zip(requests, seeds, strict=True)]
    assert generate(llm, requests) == greedy(reference, requests)
    assert generate(llm, requests, seeds, **settings) == alone
    assert sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions") > 0


def test_bfloat16_tokens_are_transformers_or_near_ties(folder: Path) -> None:
    """The logit of each token is at most 4 ulps below the largest one that transformers has on the same device."""
    requests = prompts(4, 100, 33, 7, 60, 1, 90, 21, seed=17)
    answers = generate(started(folder, dtype="bfloat16", enforce_eager=True), requests)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to("tpu")
    texts = torch.zeros(len(requests), 128, dtype=torch.int64)
    for row, prompt, answer in zip(texts, requests, answers, strict=True):
        row[: len(prompt) + NEW] = torch.tensor(prompt + answer)
    with torch.no_grad():
        logits = model(texts.to("tpu")).logits.cpu().double()
    equal = 0
    for row, prompt, answer in zip(logits, requests, answers, strict=True):
        largest, best = row[len(prompt) - 1 : len(prompt) - 1 + NEW].max(-1)
        chosen = row[len(prompt) - 1 : len(prompt) - 1 + NEW].gather(-1, torch.tensor(answer)[:, None])[:, 0]
        assert (largest - chosen <= 4 * largest.log2().floor().exp2() / 128).all()
        equal += int((best == torch.tensor(answer)).sum())
    assert equal >= 0.9 * NEW * len(requests)


def test_one_candidate_is_the_greedy_one(llm: Any, reference: Any) -> None:
    requests = prompts(6, 12, seed=10)
    assert generate(llm, requests, temperature=1.0, top_k=1, seed=1) == greedy(reference, requests)


def test_server_answers_concurrent_clients(server: str, reference: Any) -> None:
    requests = prompts(3, 11, 29, 5, 17, 41, 8, 23, seed=11)
    with ThreadPoolExecutor(len(requests)) as clients:
        answers = list(clients.map(lambda prompt: complete(server, prompt), requests))
    assert answers == greedy(reference, requests)


SCRIPT = """
import sys
import torch
from vllm import LLM, SamplingParams

sizes = {"max_model_len": 256, "max_num_seqs": 2, "max_num_batched_tokens": 64}
llm = LLM(sys.argv[1], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, **sizes)
assert not torch.tpu.is_initialized()
settings = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
(answer,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], settings)
print("tokens", list(answer.outputs[0].token_ids))
"""


def test_script_leaves_the_device_to_the_process_of_its_engine(folder: Path, reference: Any) -> None:
    """As in the README: no `if __name__ == "__main__"`, and no size of the cache, which has not all of the memory."""
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    script = (sys.executable, "-c", SCRIPT, str(folder))
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=STARTING, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"tokens {greedy(reference, [[5, 6, 7]])[0][:3]}" in done.stdout


KILLED = (
    SCRIPT
    + """
import os, signal, psutil
print("engine", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_engine_ends_with_a_process_that_was_killed(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    script = (sys.executable, "-c", KILLED, str(folder))
    with subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("engine"))
    assert process.returncode == -signal.SIGKILL
    children = [int(pid) for pid in line.split()[1:]]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)], timeout=20)
    assert children and not alive


def test_several_devices_are_refused(folder: Path) -> None:
    from vllm import LLM

    with pytest.raises((NotImplementedError, ValueError), match="one device"):
        LLM(str(folder), skip_tokenizer_init=True, tensor_parallel_size=2)
