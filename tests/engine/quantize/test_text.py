import os
from itertools import islice
from pathlib import Path

import pytest
import torch

from loraplex.engine.quantize.sample_text import paragraphs
from loraplex.engine.quantize.text import calibration_sequences
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_the_sample_text_is_the_same_every_time_and_goes_on() -> None:
    first, again = (list(islice(paragraphs(), 300)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 280, "it hardly repeats itself"


def test_sequences_begin_as_the_tokenizer_says_and_an_eighth_is_held_out(tokenizer: Tokenizer) -> None:
    sequences = calibration_sequences(tokenizer, None, 4096, 128)
    both = torch.cat([sequences.calibration, sequences.held_out])
    assert both.shape == (4096 // 127, 128) and len(sequences.held_out) == 4
    assert (both[:, 0] == tokenizer.token_id("<s>")).all() and not (both[:, 1:] == 0).any()
    again = calibration_sequences(tokenizer, None, 4096, 128)
    assert torch.equal(again.held_out, sequences.held_out)


def test_a_file_is_taken_from_its_beginning(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("Where is the library? It is behind the station. " * 40)
    sequences = calibration_sequences(tokenizer, file, 512, 256)
    first = tokenizer.decode(sequences.calibration[0].tolist())
    assert first.startswith("Where is the library?")
    assert len(sequences.held_out) == 1 and len(sequences.calibration) == 7, "short text makes short sequences"


def test_what_cannot_be_read_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"calibration file .*missing\.txt cannot be read: No such file"):
        calibration_sequences(tokenizer, tmp_path / "missing.txt", 512, 256)
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="is no file; give plain text"):
            calibration_sequences(tokenizer, odd, 512, 256)
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(ValueError, match="at least 128 are needed"):
        calibration_sequences(tokenizer, tmp_path / "short.txt", 512, 256)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81" * 100)
    with pytest.raises(ValueError, match="no UTF-8 text"):
        calibration_sequences(tokenizer, tmp_path / "binary", 512, 256)
