"""What the tests do to the live engine, in a few words."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import aiohttp
from openai import AsyncOpenAI
from openai.types import CompletionUsage

from concur_agents.scopes import AgentScope
from concur_agents.signals import Reading
from concur_agents.telemetry import VLLM
from concur_agents.telemetry.prometheus import parse
from tests.engine.server import Settings, VLLMServer

BLOCK = 128
SETTINGS = Settings(kv_tokens=8192, block_size=BLOCK, max_model_len=4096)
USABLE_BLOCKS = SETTINGS.kv_tokens // BLOCK - 1
"""vLLM keeps one for itself."""

_seeds = itertools.count()


def fresh_tokens(count: int) -> list[int]:
    """A prompt that nobody has sent before, of ASCII characters in the tiny model's vocabulary.

    The model mostly repeats the last token. Were that a part of a UTF-8 sequence, vLLM would hold all text
    back until the end of the answer, and streams would have nothing to say.
    """
    rng = random.Random(next(_seeds))
    return [rng.randrange(2, 90) for _ in range(count)]


def whole_blocks(tokens: int) -> int:
    """What of `tokens` the cache can give back."""
    return tokens // BLOCK * BLOCK


class Engine:
    """The server, asked directly: nothing here is admitted by a controller."""

    def __init__(self, server: VLLMServer) -> None:
        self.url = server.url
        self.model = server.model

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    async def read(self) -> Reading:
        return await VLLM(self.url).read(0.0)

    async def flush(self) -> None:
        """Empty its cache, as a restart or other people's requests would."""
        async with aiohttp.ClientSession(self.url) as http, http.post("/reset_prefix_cache") as response:
            assert response.status == 200, await response.text()

    async def generated(self) -> float:
        """Tokens that it generated since its start."""
        name = "vllm:generation_tokens_total"
        async with aiohttp.ClientSession(self.url) as http, http.get("/metrics") as response:
            [sample] = parse(await response.text(), {name})[name]
        return float(sample.value)

    async def until(self, true: Callable[[Reading], bool]) -> Reading:
        """The first reading of which that is true; it has no event to wait for."""
        async with asyncio.timeout(60):
            while not true(seen := await self.read()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return seen

    async def until_idle(self) -> Reading:
        return await self.until(lambda seen: (seen.running, seen.waiting) == (0, 0))

    async def complete(self, prompt: list[int], generate: int = 1) -> CompletionUsage:
        """A text completion of exactly so many tokens."""
        async with self.client() as client:
            reply = await client.completions.create(
                model=self.model, prompt=prompt, max_tokens=generate, extra_body={"ignore_eos": True}
            )
        return reply.usage

    async def step(self, agent: AgentScope, context: list[int], generate: int = 8) -> CompletionUsage:
        """One admitted generation call, which appends what it generates to `context`."""
        async with agent.step() as step, self.client() as client:
            reply = await client.completions.create(
                model=self.model,
                prompt=context,
                max_tokens=generate,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            step.record(reply.usage)
        context += reply.choices[0].token_ids
        return reply.usage


def cached(usage: CompletionUsage) -> int:
    return usage.prompt_tokens_details.cached_tokens


async def soon(true: Callable[[], bool]) -> None:
    """Wait for something in this process that has no event."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
