"""The server over real sockets, with the clients that people use."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from prometheus_client.parser import text_string_to_metric_families

from concur_agents.simulator.faults import Faults
from concur_agents.simulator.hosting import EmbeddedServer, ServerStartError
from concur_agents.simulator.profiles import CPU_TINY

FAST = 200.0
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


@pytest.fixture(scope="module")
def shared():
    with EmbeddedServer(CPU_TINY, speed=FAST) as server:
        yield server


@pytest.fixture
async def client(shared):
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def series(http, server, *names):
    """Values of the series that have exactly these names, by name (or by name and last label)."""
    query = "&".join(f"name[]={name}" for name in names)
    async with http.get(f"{server.url}/metrics/?{query}") as response:
        text = await response.text()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


async def until(condition, limit=5.0):
    end = time.monotonic() + limit
    while not await condition():
        assert time.monotonic() < end, "condition did not come true"
        await asyncio.sleep(0.005)


async def test_trajectory_of_tool_calls_hits_its_own_prefix(client, shared):
    messages = [
        {"role": "user", "content": "[[concur steps=3 tool=search generate=40]] " + "trajectory" * 160}
    ]
    reasons, cached, previous = [], [], 0
    for _ in range(3):
        answer = await client.chat.completions.create(model=shared.model, messages=messages, tools=[SEARCH])
        choice, usage = answer.choices[0], answer.usage
        reasons.append(choice.finish_reason)
        cached.append(usage.prompt_tokens_details.cached_tokens)
        assert usage.completion_tokens == 40
        assert cached[-1] == previous // 128 * 128
        previous = usage.total_tokens
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls or ():
            assert json.loads(call.function.arguments)["query"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "result" * 200})
    assert reasons == ["tool_calls", "tool_calls", "stop"]
    assert cached[2] > cached[1] > cached[0] == 0


async def test_stream_says_what_the_whole_answer_says(client, shared):
    body = {
        "model": shared.model,
        "messages": [{"role": "user", "content": "[[concur steps=2 generate=30]] stream"}],
        "tools": [SEARCH],
    }
    whole = (await client.chat.completions.create(**body)).choices[0]
    text, name, arguments, reason, usage = "", "", "", None, None
    stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert text == whole.message.content
    assert (name, arguments) == (
        whole.message.tool_calls[0].function.name,
        whole.message.tool_calls[0].function.arguments,
    )
    assert reason == whole.finish_reason == "tool_calls"
    assert usage.completion_tokens == 30


async def test_completions_of_text_and_of_token_ids(client, shared):
    ids = list(range(5000, 5300))
    extra = {"return_token_ids": True, "ignore_eos": True}
    first = await client.completions.create(model=shared.model, prompt=ids, max_tokens=84, extra_body=extra)
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (300, 84)
    grown = ids + first.choices[0].token_ids + [1] * 10
    second = await client.completions.create(model=shared.model, prompt=grown, max_tokens=4, extra_body=extra)
    assert second.usage.prompt_tokens_details.cached_tokens == 384
    text = "some odd text" * 100
    first = await client.completions.create(model=shared.model, prompt=text, max_tokens=100, extra_body=extra)
    second = await client.completions.create(
        model=shared.model, prompt=text + first.choices[0].text + " more", max_tokens=4
    )
    assert second.usage.prompt_tokens_details.cached_tokens == (first.usage.total_tokens - 1) // 128 * 128
    parts = [
        chunk.choices[0].text
        async for chunk in await client.completions.create(
            model=shared.model, prompt=text, max_tokens=100, stream=True, extra_body=extra
        )
        if chunk.choices
    ]
    assert "".join(parts) == first.choices[0].text


@pytest.mark.parametrize("streaming", [False, True])
def test_langchain_agent_loop(shared, streaming):
    @tool
    def search(query: str, new_tokens: int = 1) -> str:
        """Look something up."""
        return query + " result" * new_tokens

    model = ChatOpenAI(
        base_url=f"{shared.url}/v1",
        api_key="none",
        model=shared.model,
        streaming=streaming,
        stream_usage=True,
    ).bind_tools([search])
    messages = [
        HumanMessage("[[concur steps=4 tool=search generate=32 new_tokens=200]] find it" + " please" * 60)
    ]
    cached = []
    for _ in range(4):
        answer = model.invoke(messages)
        messages.append(answer)
        cached.append(answer.usage_metadata["input_token_details"]["cache_read"])
        for call in answer.tool_calls:
            assert call["args"]["new_tokens"] == 200
            messages.append(ToolMessage(search.invoke(call["args"]), tool_call_id=call["id"]))
    assert [bool(m.tool_calls) for m in messages if m.type == "ai"] == [True, True, True, False]
    assert cached[3] > cached[2] > cached[1] > 0


async def test_disconnect_aborts_before_the_first_byte_and_in_the_stream(http):
    slow = {"messages": [{"role": "user", "content": "x" * 8000}], "max_tokens": 4000, "ignore_eos": True}
    with EmbeddedServer(CPU_TINY, speed=1.0) as server:
        for stream in (False, True):
            before = await counted(http, server)
            response = http.post(f"{server.url}/v1/chat/completions", json=slow | {"stream": stream})
            task = asyncio.ensure_future(response)
            await until(lambda: running(http, server, 1))
            if stream:
                got = await task
                await got.content.readany()
                got.close()
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until(lambda: running(http, server, 0))
            assert await counted(http, server) == before + 1
        usage = await series(http, server, "vllm:kv_cache_usage_perc")
        assert usage == {"vllm:kv_cache_usage_perc": 0.0}


async def running(http, server, count):
    return await series(http, server, "vllm:num_requests_running") == {"vllm:num_requests_running": count}


async def counted(http, server):
    """Aborted requests so far."""
    async with http.get(f"{server.url}/metrics") as response:
        text = await response.text()
    return next(
        s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == "vllm:request_success_total" and s.labels["finished_reason"] == "abort"
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": -1},
            400,
            "max_tokens",
        ),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 40_000}]}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}], "max_tokens": 9000}, 400, "max_tokens"),
        ("chat/completions", {"messages": [{"role": "user"}], "model": "other"}, 404, "model"),
        ("chat/completions", {"messages": [{"role": "user"}], "n": 2}, 400, "n"),
        ("chat/completions", {"messages": [{"role": "user"}], "concur": {"steps": 0}}, 400, "concur.steps"),
        ("chat/completions", {"messages": [{"role": "user"}], "tools": [{"type": "function"}]}, 400, "tools"),
        ("chat/completions", {"messages": [{"role": "user"}], "tool_choice": "required"}, 400, "tool_choice"),
        ("completions", {"prompt": "x" * 40_000}, 400, "prompt"),
        ("completions", {"prompt": [1, -5]}, 400, "prompt"),
        ("completions", {"prompt": []}, 400, "prompt"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("completions", {"prompt": 5}, 400, "prompt"),
    ],
)
async def test_bad_requests_name_the_field(http, shared, path, body, status, param):
    async with http.post(f"{shared.url}/v1/{path}", json=body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (status, status, param)
        assert error["message"]


async def test_bad_json_is_a_client_error(http, shared):
    async with http.post(f"{shared.url}/v1/chat/completions", data=b"{") as response:
        assert response.status == 400
        assert "Invalid JSON" in (await response.json())["error"]["message"]


async def test_metrics_have_vllms_names_and_meaning(http, client):
    with EmbeddedServer(CPU_TINY, speed=FAST) as server:
        body = {"prompt": list(range(1280)), "max_tokens": 2}
        for _ in range(2):
            async with http.post(f"{server.url}/v1/completions", json=body) as response:
                assert response.status == 200
        async with http.get(f"{server.url}/metrics") as response:
            assert response.headers["content-type"].startswith("text/plain")
            families = {f.name: f for f in text_string_to_metric_families(await response.text())}
        values = {name: f.samples[0].value for name, f in families.items()}
        assert values["vllm:kv_cache_usage_perc"] == 0.0
        assert values["vllm:prefix_cache_queries"] == values["vllm:prompt_tokens"] == 2560
        assert values["vllm:prefix_cache_hits"] == values["vllm:prompt_tokens_cached"] == 1152
        assert values["vllm:generation_tokens"] == 4
        labels = families["vllm:cache_config_info"].samples[0].labels
        assert (labels["num_gpu_blocks"], labels["block_size"]) == ("256", "128")
        assert labels["kv_cache_size_tokens"] == "32768"
        assert families["vllm:num_requests_waiting"].samples[0].labels == {
            "engine": "0",
            "model_name": "tiny",
        }
        by_source = {
            s.labels.get("source"): s.value for s in families["vllm:prompt_tokens_by_source"].samples
        }
        assert by_source["local_compute"] == 1408

        # The filter works with the trailing slash only, as in vLLM.
        assert await series(http, server, "vllm:kv_cache_usage_perc") == {"vllm:kv_cache_usage_perc": 0.0}
        async with http.get(f"{server.url}/metrics?name[]=vllm:kv_cache_usage_perc") as response:
            assert "vllm:prompt_tokens_total" in await response.text()

        async with http.post(f"{server.url}/reset_prefix_cache") as response:
            assert response.status == 200
        async with http.post(f"{server.url}/v1/completions", json=body) as response:
            assert (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

        async with http.post(f"{server.url}/restart") as response:
            assert await response.json() == {"epoch": 1}
        assert await series(http, server, "vllm:prompt_tokens_total") == {"vllm:prompt_tokens_total": 0}


async def test_small_endpoints(http, shared):
    async with http.get(f"{shared.url}/health") as response:
        assert response.status == 200
    async with http.get(f"{shared.url}/v1/models") as response:
        (model,) = (await response.json())["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny", 8192)
    async with http.get(f"{shared.url}/version") as response:
        assert (await response.json())["version"]
    async with http.post(f"{shared.url}/tokenize", json={"prompt": "12345678"}) as response:
        assert (await response.json())["count"] == 2


async def outcomes(http, server, calls, stream=False):
    results = []
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "stream": stream}
    for _ in range(calls):
        try:
            async with http.post(f"{server.url}/v1/chat/completions", json=body) as response:
                await response.read()
                results.append(response.status)
        except aiohttp.ClientError:
            results.append("cut")
    return results


@pytest.mark.parametrize("stream", [False, True])
async def test_faults_are_reproducible(http, stream):
    faults = Faults(error_rate=0.3, drop_rate=0.3, seed=7)
    with EmbeddedServer(CPU_TINY, speed=FAST, faults=faults) as server:
        first = await outcomes(http, server, 20, stream)
        assert set(first) == {200, 500, "cut"}
        async with http.post(f"{server.url}/faults", json={"seed": 7}) as response:
            assert (await response.json())["error_rate"] == 0.3
        assert await outcomes(http, server, 20, stream) == first
        async with http.post(f"{server.url}/faults", json={"error_rate": 0, "drop_rate": 0}):
            pass
        assert set(await outcomes(http, server, 5, stream)) == {200}
        assert await series(http, server, "vllm:num_requests_running") == {"vllm:num_requests_running": 0}


async def test_metrics_faults(http):
    with EmbeddedServer(CPU_TINY, speed=FAST, faults=Faults(metrics="missing")) as server:
        async with http.get(f"{server.url}/metrics") as response:
            text = await response.text()
            assert response.status == 200
        assert "process_start_time_seconds" in text
        assert "vllm:" not in text
        for kind, status in (("off", 404), ("error", 500)):
            async with http.post(f"{server.url}/faults", json={"metrics": kind}) as response:
                assert response.status == 200
            async with http.get(f"{server.url}/metrics") as response:
                assert response.status == status
        async with http.post(f"{server.url}/faults", json={"metrics": "hang"}):
            pass
        with pytest.raises(TimeoutError):
            await http.get(f"{server.url}/metrics", timeout=aiohttp.ClientTimeout(total=0.1))
        for bad, param in (({"error_rate": 2}, "faults.error_rate"), ({"nonsense": 1}, "faults.nonsense")):
            async with http.post(f"{server.url}/faults", json=bad) as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] == param


async def test_latency_fault_delays_the_answer(http):
    with EmbeddedServer(CPU_TINY, speed=FAST, faults=Faults(latency=0.15)) as server:
        start = time.monotonic()
        assert await outcomes(http, server, 1) == [200]
        assert time.monotonic() - start >= 0.15


async def test_time_passes_as_the_cost_model_says(http):
    """A 6,000-token prompt costs 0.8 s and more at speed 1: a tenth of it at speed 10."""
    with EmbeddedServer(CPU_TINY, speed=10.0) as server:
        expected = sum(
            CPU_TINY.costs.iteration(stop - start, (stop - start) * (start + stop + 1) / 2, 0, 0)
            for start, stop in ((0, 2048), (2048, 4096), (4096, 6000))
        )
        start = time.monotonic()
        async with http.post(f"{server.url}/v1/completions", json={"prompt": [3] * 6000, "max_tokens": 1}):
            took = time.monotonic() - start
        assert expected / 10 <= took < expected / 10 + 0.3


def test_port_in_use_is_explained(shared):
    with pytest.raises(ServerStartError, match="choose another port"):
        EmbeddedServer(CPU_TINY, port=shared.port).start()


async def test_a_whole_workload_over_http_computes_what_virtual_time_says(http):
    """Lockstep-a with at most 6 agents started: real sockets and real time, the same blocks."""
    body = {"max_tokens": 16, "ignore_eos": True, "return_token_ids": True}
    places = asyncio.Semaphore(6)

    async def agent(server, number):
        async with places:
            context = []
            for step in range(12):
                context += [number * 1000 + step] * 400
                request = body | {"prompt": context}
                async with http.post(f"{server.url}/v1/completions", json=request) as response:
                    context += (await response.json())["choices"][0]["token_ids"]
                await asyncio.sleep(1 / FAST)

    with EmbeddedServer(CPU_TINY, speed=FAST) as server:
        await asyncio.gather(*(agent(server, number) for number in range(24)))
        queries = await series(
            http, server, "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
        )
    computed = queries["vllm:prefix_cache_queries_total"] - queries["vllm:prefix_cache_hits_total"]
    assert computed == 129_024
