"""vLLM on lazytpu's device beside transformers' continuous batching (`examples/serving.py`): the same requests to the
same small model, by both.

    python plugins/vllm/benchmark.py                                    # show the table
    python plugins/vllm/benchmark.py --write plugins/vllm/README.md     # and put it between the markers there

Each server runs in a process of its own, once with an empty cache of programs and once with the programs that the first
process left on disk. A process serves all requests twice. On a CPU the device is the same cores as torch's, and a model
this small shows what recording and launching cost.

    start      seconds of CPU until the first request, with vLLM's warm-up
    programs   compiled before the first request + by requests
    first      tokens per second of CPU, the first time
    again      tokens per second of CPU, the second time
    differ     requests whose tokens are not those of torch's CPU device
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]  # both have a module `serving`
BEGIN = "<!-- figures: python plugins/vllm/benchmark.py --write plugins/vllm/README.md -->"
END = "<!-- end of figures -->"
COLUMNS = ("start", "programs", "first", "again", "differ")
QUICK = "--requests 4 --longest 12 --tokens 5".split()


def run(server: str, sizes: argparse.Namespace) -> dict[str, Any]:
    """Serve the requests twice in this process, by "vllm", or by transformers on "tpu" or "cpu"."""
    begin = time.process_time()
    serve = _vllm(sizes) if server == "vllm" else _transformers(server, sizes)
    report: dict[str, Any] = {"start": time.process_time() - begin}
    compiles = [_compiles(server)]
    for name in ("first", "again"):
        begin = time.process_time()
        answers = serve()
        report[name] = sum(map(len, answers)) / (time.process_time() - begin)
        compiles.append(_compiles(server))
    return report | {"programs": f"{compiles[0]} + {compiles[-1] - compiles[0]}", "answers": answers}


def _compiles(server: str) -> int:
    if server == "cpu":
        return 0
    import lazytpu

    return lazytpu.metrics()["compiles"]


def _vllm(sizes: argparse.Namespace) -> Any:
    import serving
    from vllm import LLM, SamplingParams

    chosen = random.Random(0)
    lengths = [chosen.randint(2, sizes.longest) for _ in range(sizes.requests)]
    prompts = [[chosen.randrange(serving.VOCABULARY) for _ in range(length)] for length in lengths]
    samplings = [
        SamplingParams(temperature=0, max_tokens=chosen.randint(1, sizes.tokens), ignore_eos=True, detokenize=False)
        for _ in prompts
    ]
    with tempfile.TemporaryDirectory() as folder:
        serving.model_of(sizes.layers, sizes.width).save_pretrained(folder)
        llm = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=16 * -(-(sizes.longest + sizes.tokens) // 16),
            max_num_seqs=sizes.at_once,
            max_num_batched_tokens=128,
            kv_cache_memory_bytes=64 << 20,
            enable_prefix_caching=False,
        )

    def serve() -> list[list[int]]:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], samplings, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    return serve


def _transformers(device: str, sizes: argparse.Namespace) -> Any:
    import serving

    if device == "tpu":
        import lazytpu

        lazytpu.options.buckets = "auto"
    model = serving.model_of(sizes.layers, sizes.width).to(device)
    return lambda: serving.serve(model, sizes)


def served(server: str, sizes: list[str], cache: str) -> dict[str, Any]:
    """Return the report of a process."""
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, __file__, "--server", server, *sizes],
        env={**os.environ, **quiet, "LAZYTPU_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout.strip().splitlines()[-1])
    print({name: value for name, value in report.items() if name != "answers"}, file=sys.stderr)
    return report


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    from common import machine

    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for name, row in rows.items():
        cells = f"{row['start']:.1f} s", row["programs"], f"{row['first']:.0f}", f"{row['again']:.0f}", row["differ"]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    about = machine()
    lines += ["", f"{about['cpu']}, torch {about['torch']}, jaxlib {about['jaxlib']}, vLLM 0.29.0; {about['date']}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a Markdown page with the markers")
    parser.add_argument("--quick", action="store_true", help="few requests: whether it works, not how fast")
    parser.add_argument("--server", choices=["vllm", "tpu", "cpu"], help=argparse.SUPPRESS)
    args, sizes = parser.parse_known_args()
    if args.server:
        sys.argv[1:] = sizes
        import serving

        sizes = serving.arguments()
        sizes.sample = False
        print(json.dumps(run(args.server, sizes)))
        return
    sizes = [*sizes, *(QUICK if args.quick else ())]
    rows: dict[str, dict[str, Any]] = {}
    for server, name in (("vllm", "vLLM on the device"), ("tpu", "transformers on the device")):
        with tempfile.TemporaryDirectory() as cache:
            rows[f"{name}, cold"] = served(server, sizes, cache)
            rows[f"{name}, programs on disk"] = served(server, sizes, cache)
    rows["transformers on torch's CPU"] = reference = served("cpu", sizes, "")
    for row in rows.values():
        row["differ"] = sum(ours != theirs for ours, theirs in zip(row["answers"], reference["answers"], strict=True))
    text = markdown(rows)
    print(text)
    if args.write is not None:
        page = re.sub(
            f"{re.escape(BEGIN)}.*?{re.escape(END)}",
            lambda _: f"{BEGIN}\n{text}\n{END}",
            args.write.read_text(),
            flags=re.DOTALL,
        )
        args.write.write_text(page)


if __name__ == "__main__":
    main()
