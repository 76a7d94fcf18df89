import pytest

from .fakes import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
