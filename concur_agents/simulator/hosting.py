"""Running the server: inside this process on a thread of its own, or in the foreground.

`EmbeddedServer` has its own thread and event loop, so it can be used from any loop or from none, and what it
computes does not delay its clients' loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import uvicorn

from concur_agents.errors import ConcurError, check_range
from concur_agents.simulator.server import create_app

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.types import Scope

    from concur_agents.simulator.costs import Profile
    from concur_agents.simulator.faults import Faults


class ServerStartError(ConcurError, RuntimeError):
    """The server did not come up (port in use, not allowed to listen)."""


def _build(
    profile: Profile, speed: float, faults: Faults | None, host: str, port: int, log_level: str
) -> uvicorn.Server:
    def cut(scope: Scope) -> None:
        for connection in list(server.server_state.connections):
            if getattr(connection, "client", None) == tuple(scope["client"] or ()):
                transport = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()

    config = uvicorn.Config(
        create_app(profile, speed=speed, faults=faults, cut=cut),
        host=host,
        port=port,
        log_level=log_level,
        access_log=False,
        lifespan="on",
        timeout_keep_alive=30,  # longer than clients keep theirs (httpx: 5 s): they never write into a close
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    return server


class EmbeddedServer:
    """The simulated engine behind HTTP, in this process.

    Use as `async with` or `with`, or call `start` and `stop`. `url` is the root, e.g. http://127.0.0.1:40123;
    the OpenAI base URL is `url + "/v1"`.

    Args:
        profile: Of the engine.
        speed: Engine seconds per wall-clock second, > 0.
        faults: To start with.
        host: Address to listen on.
        port: 0 for any free one.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        speed: float = 1.0,
        faults: Faults | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        check_range("speed", speed, 0, open_low=True)
        check_range("port", port, 0, 65535)
        self.profile = profile
        self.host = host
        self.port = port
        self._speed = speed
        self._faults = faults
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Root URL; valid once started."""
        return f"http://{self.host}:{self.port}"

    @property
    def model(self) -> str:
        """Name of the model served."""
        return self.profile.model

    def start(self) -> None:
        """Listen and return once requests are answered.

        Raises:
            ServerStartError: The address cannot be listened on.
        """
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            where = f"{self.host}:{self.port}"
            msg = f"cannot listen on {where}: {error.strerror}; choose another port, or 0 for any"
            raise ServerStartError(msg) from error
        self.port = listener.getsockname()[1]
        server = _build(self.profile, self._speed, self._faults, self.host, self.port, "error")
        thread = threading.Thread(target=server.run, args=([listener],), name="concur-engine", daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                msg = f"the server on {self.url} ended while it started; see the log above"
                raise ServerStartError(msg)
            time.sleep(0.005)
        self._server, self._thread = server, thread

    def stop(self) -> None:
        """Stop and wait until the thread has ended. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedServer:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def serve(
    host: str,
    port: int,
    profile: Profile,
    *,
    kv_tokens: int | None = None,
    speed: float = 1.0,
    faults: Faults | None = None,
    log_level: str = "info",
) -> None:
    """Serve in the foreground until SIGINT or SIGTERM.

    Args:
        host: Address to listen on.
        port: 1..65535, or 0 for any free one.
        profile: Of the engine.
        kv_tokens: Size of the KV cache in tokens instead of the profile's.
        speed: Engine seconds per wall-clock second, > 0.
        faults: To start with.
        log_level: Of uvicorn.
    """
    check_range("port", port, 0, 65535)
    check_range("speed", speed, 0, open_low=True)
    if kv_tokens is not None:
        profile = profile.with_kv_tokens(kv_tokens)
    server = _build(profile, speed, faults, host, port, log_level)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
