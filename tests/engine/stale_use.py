"""A slot that is given away while a request uses it, as no part of the pool ever does: what becomes of the requests."""

from pathlib import Path

from loraplex import LLM, SamplingParams
from loraplex.engine.protocol import AdapterRef, FromEngine, GenerateRequest, RequestFailed, Tokens
from loraplex.lora.residency.residency import AdapterEntry
from tests.checkpoints import make_adapter

PARAMS = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
PROMPT = [4, 5, 6, 7]


def check_a_slot_given_away_fails_its_user_alone(llm: LLM) -> None:
    """`llm` has room for two adapters, "one" and "two" of the same rank; some steps may be in flight."""
    right, plain = (
        output.outputs[0].token_ids for output in llm.generate([PROMPT, PROMPT], PARAMS, adapter=["one", None])
    )
    other = llm.generate(PROMPT, PARAMS, adapter="two")[0].outputs[0].token_ids
    assert right != other, "adapters that answer alike show nothing"
    engine, errors = llm.llm_engine.engine, llm.status().integrity_errors
    one, two = (engine.adapters._entries[llm.llm_engine.adapters.digest(name)] for name in ("one", "two"))
    engine.adapters.evict(two.digest)
    for request_id, adapters in (("victim", [AdapterRef(one.digest)]), ("beside", [])):
        engine.core.add(
            GenerateRequest(request_id=request_id, prompt_token_ids=PROMPT, params=PARAMS, adapters=adapters)
        )
    messages = [message for _ in range(4) for message in advance(llm)]
    give_away(llm, one, two)
    while engine.core.has_work():
        messages += advance(llm)
    said = tokens_of(messages, "victim")
    assert said == right[: len(said)] and len(said) < len(right), "nothing of another adapter was said"
    [failure] = [message for message in messages if isinstance(message, RequestFailed)]
    assert (failure.request_id, failure.kind) == ("victim", "internal") and "mistake of the server" in failure.message
    assert tokens_of(messages, "beside") == plain, "who has another adapter, or none, goes on"
    assert llm.status().integrity_errors > errors
    assert llm.generate(PROMPT, PARAMS, adapter="one")[0].outputs[0].token_ids == right, "it is loaded again"
    assert engine.adapters.check_integrity() == []


def give_away(llm: LLM, loser: AdapterEntry, winner: AdapterEntry) -> None:
    """The room of a held adapter, behind the pool's back, to another one."""
    adapters, room = llm.llm_engine.engine.adapters, loser.room
    assert loser.users and room is not None
    adapters._store.free(room)
    assert f"adapter slot {room.slot} is of epoch" in " ".join(adapters.check_integrity())
    adapters.load(winner.digest)
    while not adapters.resident(winner.digest):
        adapters.poll()
    assert winner.room is not None and winner.room.slot == room.slot and winner.room.offsets == room.offsets


def advance(llm: LLM) -> list[FromEngine]:
    llm.llm_engine.engine.adapters.poll()
    return llm.llm_engine.engine.core.step()


def tokens_of(messages: list[FromEngine], request_id: str) -> list[int]:
    own = [message for message in messages if isinstance(message, Tokens) and message.request_id == request_id]
    return [token for message in own for token in message.token_ids]


def adapters_in(folder: Path, base: Path) -> dict[str, Path]:
    return {name: make_adapter(folder / name, base, rank=8, seed=seed) for seed, name in enumerate(("one", "two"))}
