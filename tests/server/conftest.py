import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from serving import Server  # noqa: E402


@pytest.fixture(scope="session")
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def start():
    """Starts servers with other options; they end with the test."""
    started = []

    def run(*options):
        started.append(Server(*options))
        return started[-1]

    yield run
    for running in started:
        running.close()
