"""A real HTTP server on loopback that answers like an engine, well or badly."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

FIXTURES = Path(__file__).parent / "fixtures"
VLLM_032 = (FIXTURES / "vllm032_metrics.txt").read_text()
SGLANG_0523 = (FIXTURES / "sglang0523_metrics.txt").read_text()
SGLANG_LOADS = (FIXTURES / "sglang0523_v1_loads.json").read_text()


class FakeEngine:
    """Answers each path with a text (200) or a status; None hangs. A path without an answer is a 404.

    `filtering`: "on" honours name[] at /metrics/, "empty" answers it with nothing (multiprocess mode), "off"
    refuses the path.
    """

    def __init__(self, metrics=404, loads=404, filtering="on") -> None:
        self.pages = {"/metrics": metrics, "/v1/loads": loads}
        self.filtering = filtering
        self.seen: list[str] = []
        self.headers: list = []
        self.asked = asyncio.Event()
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._server = TestServer(app)

    async def __aenter__(self) -> FakeEngine:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_) -> None:
        self._stop.set()
        await self._server.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("")).rstrip("/")

    @property
    def metrics(self):
        return self.pages["/metrics"]

    @metrics.setter
    def metrics(self, value) -> None:
        self.pages["/metrics"] = value

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        self.asked.set()
        self.headers.append(request.headers)
        page = self.pages.get(request.path.rstrip("/"), 404)
        if page is None:
            await self._stop.wait()
            return web.Response(status=503)
        if isinstance(page, int):
            return web.Response(status=page)
        if request.path == "/metrics/":
            if self.filtering == "off":
                return web.Response(status=404)
            page = "" if self.filtering == "empty" else only(page, request.query.getall("name[]"))
        return web.Response(body=page if isinstance(page, bytes) else page.encode())


def only(text: str, names) -> str:
    """What an exporter sends for name[]."""
    return "".join(f"{line}\n" for line in text.splitlines() if re.split(r"[{ ]", line)[0] in names)


def exposition(**values) -> str:
    """vLLM text: name=value, or name={engine: value}."""
    lines = []
    for name, value in values.items():
        each = value if isinstance(value, dict) else {"0": value}
        lines += [f'vllm:{name}{{engine="{engine}",model_name="m"}} {v}' for engine, v in each.items()]
    return "\n".join(lines) + "\n"


def counters(hits, queries, *, usage=0.5, running=1, waiting=0, preemptions=0) -> str:
    """A present-day vLLM's answer, short."""
    return exposition(
        kv_cache_usage_perc=usage,
        num_requests_running=running,
        num_requests_waiting=waiting,
        num_preemptions_total=preemptions,
        prompt_tokens_cached_total=hits,
        prompt_tokens_total=queries,
    )
