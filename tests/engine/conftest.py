"""One real vLLM for the session, with a cache that eight agents outgrow; empty and idle for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.live import SETTINGS, Engine
from tests.engine.server import EngineStartError, VLLMServer


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[VLLMServer]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(line, flush=True)

    running = VLLMServer(SETTINGS, tell=tell)
    try:
        running.start()
    except EngineStartError as error:  # once and plainly, not for every test
        pytest.exit(str(error), returncode=1)
    yield running
    running.stop()


@pytest.fixture
async def engine(server: VLLMServer) -> Engine:
    engine = Engine(server)
    await engine.until_idle()
    await engine.flush()
    return engine
