from pathlib import Path

import pytest

from loraplex import LLM
from tests.checkpoints import make_checkpoint

from ..stale_use import adapters_in, check_a_slot_given_away_fails_its_user_alone


@pytest.mark.parametrize("host_memory", [0, 1 << 20])
def test_a_slot_given_away_fails_its_user_alone(tmp_path: Path, host_memory: int) -> None:
    base = make_checkpoint(tmp_path / "base")
    settings = {"num_kv_blocks": 64, "adapter_memory": 1 << 20, "max_loaded_adapters": 2, "num_threads": 1}
    with LLM(base, adapters_in(tmp_path, base), adapter_host_memory=host_memory, **settings) as llm:
        check_a_slot_given_away_fails_its_user_alone(llm)
