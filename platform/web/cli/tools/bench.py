"""`loraplex bench`: load on a running server, base and adapters, in tokens/s, TTFT and TPOT."""

import asyncio
import json
import random
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from ...load_generator import Round, Server, run_round
from ...settings.settings import Settings
from ..output import Json, print_json
from ..server_here import answering_server

MAX_CONCURRENT = 256


@dataclass(frozen=True, slots=True)
class Median:
    """Of the rounds with one kind of traffic, by tokens per second."""

    traffic: str
    tokens_per_second: float
    ttft_ms: float
    tpot_ms: float


def bench(
    concurrent: Annotated[int, typer.Option(min=1, max=MAX_CONCURRENT, help="Concurrent streams.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens per response.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds, alternating base and adapters.")] = 3,
    as_json: Json = False,
) -> None:
    """Measure the running server: first all streams on the base, then spread over the adapters."""
    running = answering_server()
    if running is None:
        raise ValueError(f"no server is running on the data folder {Settings().data_dir}. Start one: loraplex serve")
    place = urlsplit(running.url)
    assert place.hostname is not None and place.port is not None
    server = Server(place.hostname, place.port, running.key)
    base, adapters = _models(server)
    randomness = random.Random(0)
    prompts = [[randomness.randrange(10, 250) for _ in range(prompt_tokens)] for _ in range(concurrent)]
    traffic = {f"base {base}": [base] * concurrent}
    if adapters:
        spread = [adapters[index % len(adapters)] for index in range(concurrent)]
        traffic[f"{min(concurrent, len(adapters))} adapters"] = spread
    results: dict[str, list[Round]] = {name: [] for name in traffic}
    for models in traffic.values():
        asyncio.run(run_round(server, models, prompts, 2))
    for _ in range(rounds):
        for name, models in traffic.items():
            results[name].append(asyncio.run(run_round(server, models, prompts, output_tokens)))
    medians = [_median(name, rounds) for name, rounds in results.items()]
    if as_json:
        print_json([asdict(median) for median in medians])
    else:
        _print(medians)


def _models(server: Server) -> tuple[str, list[str]]:
    """The base and its adapters, as the server lists them."""
    request = urllib.request.Request(
        f"http://{server.host}:{server.port}/v1/models", headers={"authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        models = json.load(answer)["data"]
    base = next(model["id"] for model in models if model["parent"] is None)
    return base, [model["id"] for model in models if model["parent"] is not None]


def _median(traffic: str, rounds: Sequence[Round]) -> Median:
    middle = sorted(rounds, key=lambda one: one.tokens_per_second)[len(rounds) // 2]
    return Median(traffic, middle.tokens_per_second, 1000 * middle.first_token, 1000 * middle.per_token)


def _print(medians: Sequence[Median]) -> None:
    table = Table("traffic", "tokens/s", "TTFT ms", "TPOT ms")
    for one in medians:
        table.add_row(one.traffic, f"{one.tokens_per_second:.1f}", f"{one.ttft_ms:.0f}", f"{one.tpot_ms:.1f}")
    Console().print(table)
