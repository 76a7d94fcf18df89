"""Does the engine grow? Thousands of short requests of all kinds against a demo server, and its memory as they go by.

    python -m benchmarks.soak --requests 6000

Memory that the engine reserves at its start (KV blocks, adapter pages) counts only once it was written to, so the first
thousands of requests raise the resident size without any growth. `--kv-blocks` small makes that moment come soon.
"""

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx

from .server import ROOT, Serving, serving

DEMO: Final = ROOT / "examples" / "demo"
AT_ONCE: Final = 24
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FIELDS: Final = ("Rss", "Private_Dirty", "Anonymous")


def engine_pid(server: Serving) -> int:
    """The engine among the server's children."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"loraplex.engine" in Path(f"/proc/{pid}/cmdline").read_bytes())


def memory(pid: int) -> dict[str, float]:
    """MiB of a process: in all, written to by it alone, and not of a file."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {field: int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1]) / 1024 for field in FIELDS}  # type: ignore[index]


def mappings(pid: int) -> dict[str, float]:
    """Resident MiB of each mapping that is no file, by its address and size."""
    sizes: dict[str, float] = {}
    place = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ 0 *(\S*)$", line)
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            place = ""
            if head:
                size = (int(head[2], 16) - int(head[1], 16)) >> 20
                place = f"{head[3] or 'anonymous'} {head[1]} {size} MiB"
        elif place and line.startswith("Rss:"):
            sizes[place] = int(line.split()[1]) / 1024
    return sizes


def request(source: random.Random, models: list[str]) -> dict[str, Any]:
    """A short one of some kind: plain, drawn, penalised, with choices, with log-probabilities, of a form."""
    body: dict[str, Any] = {
        "model": source.choice(models),
        "prompt": " ".join(source.choices(("order", "ship", "seven", "where", "is", "my"), k=source.randint(1, 30))),
        "max_tokens": source.randint(1, 12),
    }
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": source.randrange(9)},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"7": -3}},
        {"n": 3, "stop": ["a", "e"]},
        {"logprobs": 3, "prompt_logprobs": 1},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"regex": f"[a-z]{{{source.randint(1, 5)}}}"}},
    ]
    return body | source.choice(kinds)


async def send(http: httpx.AsyncClient, source: random.Random, models: list[str], statuses: Counter[int]) -> None:
    """One request; one in ten is a stream that its reader leaves after the first event."""
    body = request(source, models)
    if source.random() < 0.1 and "prompt_logprobs" not in body:
        async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            async for _ in response.aiter_lines():
                break
    else:
        response = await http.post("/v1/completions", json=body)
    statuses[response.status_code] += 1


async def soak(server: Serving, models: list[str], count: int, every: int) -> list[dict[str, float]]:
    """The engine's memory before, and after each `every` requests."""
    source, statuses = random.Random(0), Counter[int]()
    pid = engine_pid(server)
    samples = [memory(pid)]
    headers, limits = {"authorization": f"Bearer {server.key}"}, httpx.Limits(max_connections=AT_ONCE)
    url = f"http://{server.host}:{server.port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=300) as http:
        before = mappings(pid)
        for done in range(every, count + 1, every):
            places = asyncio.Semaphore(AT_ONCE)

            async def one(places: asyncio.Semaphore = places) -> None:
                async with places:
                    await send(http, source, models, statuses)

            await asyncio.gather(*(one() for _ in range(every)))
            samples.append(memory(pid))
            after = mappings(pid)
            grown = {place: round(size - before.get(place, 0.0), 1) for place, size in after.items()}
            most = dict(sorted(grown.items(), key=lambda item: -item[1])[:4])
            before = after
            print(json.dumps({"requests": done, **{k: round(v, 1) for k, v in samples[-1].items()}, "grown": most}))
    print(json.dumps({"statuses": statuses}))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--kv-blocks", type=int, default=64)
    options = parser.parse_args()
    adapters = {folder.name: folder for folder in sorted((DEMO / "adapters").iterdir()) if folder.is_dir()}
    with (
        serving(DEMO / "model", adapters, num_kv_blocks=options.kv_blocks, served_name="base") as server,
        suppress(KeyboardInterrupt),
    ):
        asyncio.run(soak(server, ["base", *adapters], options.requests, options.every))


if __name__ == "__main__":
    main()
