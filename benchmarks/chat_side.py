"""Measure transformers for chat.py, in a separate process. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Untyped = Any  # Any: transformers is not typed

PROMPT, BLOCK = 40, 32


def blocks_for(streams: int, new: int) -> int:
    """Return the number of KV-cache blocks that all streams need together."""
    return -(-(PROMPT + new) // BLOCK) * streams


def generate_batch(model: str, streams: int, new: int) -> float:
    """Continuous batching of transformers, without HTTP."""
    import torch
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.set_num_threads(1)
    causal: Untyped = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    # Without these limits, each step would read a cache that fills the whole memory.
    cache = ContinuousBatchingConfig(
        block_size=BLOCK, num_blocks=blocks_for(streams, new), max_batch_tokens=512
    )
    config = transformers.GenerationConfig(
        max_new_tokens=new, do_sample=True, eos_token_id=-1, pad_token_id=0
    )

    def run(tokens: int) -> float:
        config.max_new_tokens = tokens
        started = time.perf_counter()
        results = causal.generate_batch(
            prompts(streams),
            generation_config=config,
            continuous_batching_config=cache,
            progress_bar=False,
        )
        total = sum(len(one.generated_tokens) for one in results.values())
        return total / (time.perf_counter() - started)

    run(4)
    return run(new)


def serve(model: str, streams: int, new: int) -> float:
    """`transformers serve` with its default settings."""
    return served(model, streams, new, [])


def serve_batching(model: str, streams: int, new: int) -> float:
    """`transformers serve` with continuous batching."""
    blocks = blocks_for(streams, new)
    options = ["--continuous-batching", "--cb-block-size", str(BLOCK)]
    options += ["--cb-num-blocks", str(blocks), "--cb-max-batch-tokens", "512"]
    return served(model, streams, new, options)


def served(model: str, streams: int, new: int, options: list[str]) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(Path(sys.executable).with_name("transformers")), "serve", model),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
        *("--attn-implementation", "sdpa", *options),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/health", process)
            chat(url, model, 4)
            started = time.perf_counter()
            with ThreadPoolExecutor(streams) as pool:
                tokens = sum(pool.map(lambda _: chat(url, model, new), range(streams)))
            return tokens / (time.perf_counter() - started)
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit("transformers serve did not start")


def chat(url: str, model: str, new: int) -> int:
    """Return the number of tokens of one streamed answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Tom has 12 apples and gives away 5."}],
        "max_tokens": new,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=500) as answer:
        return sum(b'"content"' in line for line in answer)


def prompts(count: int) -> list[list[int]]:
    return [[5 + (i * 31 + k * 7) % 400 for k in range(PROMPT)] for i in range(count)]


SIDES = {"generate_batch": generate_batch, "serve": serve, "serve_batching": serve_batching}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--new", type=int)
    options = parser.parse_args()
    rate = SIDES[options.side](options.model, options.streams, options.new)
    print(json.dumps({"side": options.side, "tokens_per_second": rate}))


if __name__ == "__main__":
    main()
