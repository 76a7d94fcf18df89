"""Rows of the whole engine, one function for each engine that is opened. What it says is judged before it is timed."""

import random
import time
from collections.abc import Sequence
from typing import Any, Final

import torch

from .arrivals import wait_of_short
from .attention import slope
from .busy import busy_share
from .card import copy_rate, product_rate
from .figure import Stage, Unsupported, WrongResult
from .models import Model, adapters, workplace
from .peer import answer_all
from .serving import Served, blocks_for, random_tokens, serve
from .shapes import Checkpointed
from .size import Size
from .together import Rows, known, value_of
from .trust import DECODE_TOLERANCES, require_trust, sample_texts, transformers_logits

SLACK: Final = 256
"""Tokens of each stream beyond its context: those that begin early decode while the last prompts are computed."""


def roofline(stage: Stage, model: Model, sequences: int, context: int) -> float:
    """Seconds that a decode step takes at least: bytes over the card's copy, or operations over its product."""
    read = 2 * (model.streamed + sequences * context * model.kv_values)
    attended = 2 * sequences * context * model.layers * model.heads * model.head_dim * 2
    return max(read / copy_rate(stage), (2 * model.streamed * sequences + attended) / product_rate(stage))


def little_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.little
    with serve(stage, model, **room(size.crowd, size.context)) as served:
        require_trust(stage, served, model, "little")
        taken = served.decode(size.crowd, size.context, size.steps)
        return {
            "agreeing": agreeing_share(stage, served, model),
            "captured": captured_ratio(stage, served, model),
            "roof": roofline(stage, model, size.crowd, size.context) / taken,
            "busy": busy_share(stage, served, size.crowd, size.context, size.steps),
        }


def agreeing_share(stage: Stage, served: Served, model: Model) -> float:
    """Of greedy tokens, those that transformers' logits put first. Raises WrongResult where one is put far behind."""
    streams = [served.add(text, stage.size.said) for text in sample_texts(stage, model)]
    served.run()
    logits = transformers_logits(stage, model, [stream.prompt + stream.tokens for stream in streams])
    logits = logits[:, stage.size.judged - 1 : -1]
    said = torch.tensor([stream.tokens for stream in streams])
    behind = (logits.max(-1).values - logits.gather(-1, said[..., None])[..., 0]) / logits.std(-1)
    served.clear()
    if not float(behind.max()) <= 2 * DECODE_TOLERANCES["bfloat16"]:
        raise WrongResult(f"a greedy token is {float(behind.max()):.3g} standard deviations behind transformers' first")
    return float((behind == 0).double().mean())


def captured_ratio(stage: Stage, served: Served, model: Checkpointed) -> float | Unsupported:
    """Raises WrongResult unless graphs and the same launches one by one say the same."""
    runner: Any = served.engine.core._in_flight._runner
    if not hasattr(runner, "graphs"):
        return Unsupported("steps are not captured on this device")
    graphs, size = runner.graphs, stage.size
    said, times = [], []
    for pool in (graphs, graphs.disabled()):
        runner.graphs = pool
        streams = [served.add(text, 4 * size.said) for text in sample_texts(stage, model)]
        served.run()
        said.append([stream.tokens for stream in streams])
        served.clear()
        times.append(served.decode(size.crowd, size.context, size.steps))
    runner.graphs = graphs
    if said[0] != said[1]:
        raise WrongResult("captured steps say other tokens than the same launches one by one")
    return times[0] / times[1]


def large_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.large
    longest = max(size.contexts)
    blocks = max(blocks_for(size.crowd, size.context + SLACK), blocks_for(size.growing_streams, longest + SLACK))
    settings = {"num_kv_blocks": blocks, "max_model_len": longest + SLACK}
    with serve(stage, model, **room(size.crowd, size.context) | settings) as served:
        require_trust(stage, served, model, "large")
        one, crowd = (served.decode(count, size.context, size.steps) for count in (1, size.crowd))
        lengths = [served.decode(size.growing_streams, length, size.steps // 2) for length in size.contexts]
        arrivals = size.arrivals
        step = served.decode(arrivals.streams, arrivals.short + arrivals.answer // 2, size.steps)
        return {
            "first": wait_of_short(served, arrivals, step) / step,
            "one": roofline(stage, model, 1, size.context) / one,
            "crowd": roofline(stage, model, size.crowd, size.context) / crowd,
            "busy": busy_share(stage, served, size.busy, size.context, size.steps),
            "one seconds": one,
            "crowd seconds": crowd,
            "slope": slope(size.contexts, lengths),
        }


def adapted_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.large
    base, most = value_of(known(large_rows, stage), "crowd seconds"), max(size.adapters)
    folders = adapters(model, size.rank, most, stage.device, workplace(model.bytes))
    pages = (most + 1) * model.adapter_bytes(size.rank)
    settings = room(size.crowd, size.context) | {"adapter_memory": pages + (1 << 20), "max_loaded_adapters": most}
    with serve(stage, model, folders, **settings) as served:
        load_adapters(served, served.digests)
        require_trust(stage, served, model, "adapted", adapters=folders)
        rows: Rows = {
            str(count): served.decode(size.crowd, size.context, size.steps, served.digests[:count]) / base
            for count in size.adapters
        }
        return rows | {"unused": served.decode(size.crowd, size.context, size.steps) / base}


def request_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.little
    (count, least, most), source = size.requests, random.Random(0)
    lengths = [(source.randint(least, most), source.randint(least, most)) for _ in range(count)]
    requests = [(random_tokens(source, prompt, model.vocabulary), answer) for prompt, answer in lengths]
    with serve(stage, model, **room(count, 2 * most)) as served:
        require_trust(stage, served, model, "requests")
        ours = _answer(served, requests)
    return {"": ours / answer_all(stage, model, requests)}


def slope_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.large
    wide, settings = value_of(known(large_rows, stage), "slope"), room(size.growing_streams, max(size.contexts))
    with serve(stage, model, kv_cache_dtype="fp8_e4m3", **settings) as served:
        require_trust(stage, served, model, "short keys", "fp8 keys")
        taken = [served.decode(size.growing_streams, length, size.steps // 2) for length in size.contexts]
    return {"": slope(size.contexts, taken) / wide}


def short_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.large
    wide = value_of(known(large_rows, stage), "one seconds")
    with serve(stage, model, quantization="int4", **room(4, size.context)) as served:
        require_trust(stage, served, model, "int4", "int4")
        return {"": served.decode(1, size.context, size.steps) / wide}


def long_rows(stage: Stage) -> Rows:
    size, model = stage.size, stage.size.large
    (streams, prompt, answer), source = size.answers, random.Random(0)
    settings = room(streams, prompt + answer) | {"max_num_batched_tokens": max(8192, streams)}
    with serve(stage, model, quantization="fp8", kv_cache_dtype="fp8_e4m3", **settings) as served:
        require_trust(stage, served, model, "fp8", "fp8")
        return {"": _answer(served, [(random_tokens(source, prompt, model.vocabulary), answer)] * streams)}


def many_rows(stage: Stage) -> Rows:
    """Adapters that are drawn at all lie in the host's memory when the time begins."""
    size, model = stage.size, stage.size.little
    (everyone, few), (visits, prompt, answer) = size.population, size.visits
    source, place = random.Random(0), workplace(model.bytes)
    each = -(-everyone // len(size.ranks))
    by_rank = [adapters(model, rank, each, stage.device, place) for rank in size.ranks]
    known = [folder for turn in zip(*by_rank, strict=True) for folder in turn][:everyone]
    wanted = _zipf(source, everyone, visits)
    drawn = {everyone: wanted, few: [_one_of_few(place, few, len(size.ranks)) for place in wanted]}
    places = sorted(set(drawn[everyone]) | set(drawn[few]))
    one = model.adapter_bytes(max(size.ranks))
    settings = room(size.crowd, prompt + answer) | {
        "adapter_memory": (size.crowd + 8) * one, "adapter_host_memory": len(places) * one,
        "max_loaded_adapters": 2 * size.crowd,
    }  # fmt: skip
    with serve(stage, model, [known[index] for index in places], **settings) as served:
        digest = dict(zip(places, served.digests, strict=True))
        load_adapters(served, served.digests)
        require_trust(stage, served, model, "many", adapters=[known[index] for index in places])
        runs = {}
        # The first one warms up.
        for count in (few, few, everyone):
            requests = [(random_tokens(source, prompt, model.vocabulary), answer) for _ in range(visits)]
            began = time.perf_counter()
            speed = _answer(served, requests, [digest[index] for index in drawn[count]], keep=True)
            firsts = sorted((stream.first or began) - began for stream in served.streams.values())
            runs[count] = speed, firsts[int(0.99 * (len(firsts) - 1))]
            served.clear()
    further = sum(_bytes_read(size, drawn[everyone])) - sum(_bytes_read(size, drawn[few]))
    allowed = visits * answer / runs[few][0] + answer * further / copy_rate(stage)
    return {
        "allowed": allowed * runs[everyone][0] / (visits * answer),
        "speed": runs[everyone][0] / runs[few][0],
        "first": runs[everyone][1] / runs[few][1],
        "few": runs[few][0],
        "everyone": runs[everyone][0],
    }


def _answer(
    served: Served, requests: Sequence[tuple[list[int], int]], adapters: Sequence[str | None] = (None,),
    keep: bool = False,
) -> float:  # fmt: skip
    """Tokens a second of all answers. Raises WrongResult where one has another length."""
    began = time.perf_counter()
    streams = [
        served.add(prompt, answer, adapters[number % len(adapters)]) for number, (prompt, answer) in enumerate(requests)
    ]
    served.run()
    taken = time.perf_counter() - began
    if any(len(stream.tokens) != stream.max_tokens for stream in streams):
        raise WrongResult("an answer has another length than was asked for")
    if not keep:
        served.clear()
    return sum(answer for _, answer in requests) / taken


def load_adapters(served: Served, digests: Sequence[str]) -> None:
    """Each of them was on the device once, and is there or in the host cache now."""
    pool = served.engine.adapters
    for digest in digests:
        pool.load(digest)
        while not pool.resident(digest):
            pool.poll()
            failure = pool.failure(digest)
            if failure is not None:
                raise RuntimeError(failure)
            time.sleep(0.0005)


def _bytes_read(size: Size, drawn: Sequence[int]) -> list[int]:
    """Of adapters, in a step of each wave of `crowd` requests: each adapter once, however many ask for it."""
    waves = [drawn[first : first + size.crowd] for first in range(0, len(drawn), size.crowd)]
    ranks = size.ranks
    return [sum(size.little.adapter_bytes(ranks[place % len(ranks)]) for place in {*wave}) for wave in waves]


def _zipf(source: random.Random, population: int, count: int) -> list[int]:
    return source.choices(range(population), weights=[1 / (place + 1) for place in range(population)], k=count)


def _one_of_few(place: int, few: int, ranks: int) -> int:
    """In place of an adapter that is none of the first `few`, one of them with its rank: ranks take turns."""
    assert few >= ranks
    return place if place < few else place % ranks


def room(sequences: int, tokens: int) -> dict[str, Any]:
    """Settings of an engine for as many streams, and for those it is judged by."""
    sequences = max(sequences, 4)
    return {
        "max_num_seqs": sequences, "num_kv_blocks": blocks_for(sequences, tokens + SLACK),
        "max_model_len": tokens + SLACK,
        "max_num_batched_tokens": max(2048, sequences),
    }  # fmt: skip
