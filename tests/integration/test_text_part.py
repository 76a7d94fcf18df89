"""The folder of a larger model, Gemma 4's with its encoders of pictures and sound: the text part behind a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import Gemma4Config, Gemma4ForConditionalGeneration

from loraplex.engine.text.tokenizer import Tokenizer
from tests.engine.model.families.parity import make_tokenizer, spread
from tests.engine.model.families.test_gemma4 import CONFIGS

from .live_server import LiveServer
from .talk import greedy

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
PROMPT, NEW = list(range(5, 30)), 8


def make_whole() -> Gemma4ForConditionalGeneration:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = small | {"intermediate_size": 16, "head_dim": 8, "num_key_value_heads": 2, "patch_size": 4}
    config = Gemma4Config(
        text_config=CONFIGS["like-E2B"].to_dict(),
        vision_config=vision | {"position_embedding_size": 16, "pooling_kernel_size": 1},
        audio_config=small | {"output_proj_dims": 16, "subsampling_conv_channels": [4, 4]},
        **{f"{kind}_token_id": 310 + place for place, kind in enumerate(("image", "video", "audio"))},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = Gemma4ForConditionalGeneration(config).eval()
        spread(whole)
    return whole


@pytest.fixture(scope="module")
def whole() -> Gemma4ForConditionalGeneration:
    torch.set_num_threads(1)
    return make_whole()


@pytest.fixture(scope="module")
def server(whole: Gemma4ForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("whole")
    whole.save_pretrained(make_tokenizer(folder / "base"))
    server = LiveServer(folder, folder / "base", num_kv_blocks=64, max_model_len=128)
    try:
        server.start()
        yield server
        server.check_alive()
    finally:
        server.end()


def test_texts_are_the_whole_models_and_pictures_are_refused(
    whole: Gemma4ForConditionalGeneration, server: LiveServer
) -> None:
    with server.client() as http:
        answer = http.post("/v1/completions", json=greedy("tiny", PROMPT, NEW)).json()
    expected = Tokenizer(Path(str(server.settings["model"]))).decode(own_tokens(whole), skip_special_tokens=False)
    assert answer["choices"][0]["text"] == expected
    assert "the vision encoder" in server.log() and "the audio encoder" in server.log()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key, max_retries=0) as client:

        def chat(content: Any) -> str | None:
            messages: Any = [{"role": "user", "content": content}]
            chosen = client.chat.completions.create(model="tiny", messages=messages, max_tokens=NEW, temperature=0)
            return chosen.choices[0].message.content

        text = {"type": "text", "text": "What is this?"}
        assert chat([text]) == chat("What is this?")
        with pytest.raises(openai.BadRequestError, match="say in text what it shows") as refused:
            chat([text, IMAGE])
        assert refused.value.param == "messages[0].content[1].type"
        assert chat("What is this?"), "it serves on"


@torch.inference_mode()
def own_tokens(whole: Gemma4ForConditionalGeneration) -> list[int]:
    ids = list(PROMPT)
    for _ in range(NEW):
        ids.append(int(whole(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]
