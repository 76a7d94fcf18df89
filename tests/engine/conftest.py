import pytest

from .harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()
