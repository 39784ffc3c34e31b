from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_agents.errors import InvalidValueError
from concur_agents.simulator.script import Script, find_script, plan_chat
from concur_agents.simulator.tokens import (
    block_keys,
    encode,
    encode_call,
    encode_chat,
    filler,
    token_array,
    token_count,
)

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "new_tokens": {"type": "integer"},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "note": {"type": "string"},
            },
            "required": ["query", "mode"],
        },
    },
}
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()}
    ),
    min_size=1,
    max_size=6,
)


def user(text):
    return [{"role": "user", "content": text}]


@given(MESSAGES, MESSAGES)
def test_appending_messages_keeps_the_prefix(first, more):
    before = encode_chat(first)[:-1]  # without the marker that opens the answer
    assert encode_chat([*first, *more])[: len(before)] == before


@given(st.integers(0, 300), st.integers(0, 1000))
def test_filler_has_the_length_asked_for(tokens, seed):
    text = filler(tokens, seed)
    assert len(encode(text)) == token_count(text) == tokens


@given(st.text())
def test_token_count(text):
    assert token_count(text) == len(encode(text))


def test_an_answer_sent_back_has_the_tokens_that_were_generated():
    messages = user("[[concur steps=3 tool=search generate=40]] go")
    reply = plan_chat(messages, [SEARCH], None, find_script(messages), None)
    generated = encode_chat(messages) + encode(reply.content) + encode_call("search", reply.call.arguments)
    assert len(generated) - len(encode_chat(messages)) == reply.tokens == 40
    # Clients format the arguments' JSON in their own way, and may leave the content out.
    reformatted = json.dumps(json.loads(reply.call.arguments), indent=2)
    call = {"id": "x", "type": "function", "function": {"name": "search", "arguments": reformatted}}
    answer = {"role": "assistant", "content": reply.content, "tool_calls": [call]}
    again = encode_chat([*messages, answer, {"role": "tool", "tool_call_id": "x", "content": "found"}], [])
    assert again[: len(generated)] == generated


def test_keys_agree_exactly_as_far_as_the_tokens_do():
    tokens = token_array(range(100))
    other = token_array([*range(50), 7, *range(51, 100)])
    mine, theirs = block_keys(tokens, 16), block_keys(other, 16)
    assert len(mine) == 6
    assert [a == b for a, b in zip(mine, theirs, strict=True)] == [True] * 3 + [False] * 3
    assert block_keys(tokens[:40], 16) == mine[:2]


def test_bad_token_ids_are_refused():
    for ids in ([1, -1], [2**32], [1.5], ["a"]):
        with pytest.raises(InvalidValueError, match="no token id"):
            token_array(ids)


def turns(count):
    return [{"role": "assistant", "content": "ok"}] * count


def test_tool_is_called_until_the_last_step():
    messages = user("[[concur steps=3 tool=search]]")
    script = find_script(messages)
    kinds = [plan_chat(messages + turns(n), [SEARCH], None, script, None).finish_reason for n in range(4)]
    assert kinds == ["tool_calls", "tool_calls", "stop", "stop"]


def test_arguments_fit_the_schema_and_take_the_directives_values():
    messages = user("[[concur steps=2 new_tokens=400 note='a b']]")
    call = plan_chat(messages, [SEARCH], None, find_script(messages), None).call
    assert json.loads(call.arguments) == {
        "query": "search 1",
        "mode": "fast",
        "new_tokens": 400,
        "note": "a b",
    }


def test_extra_field_wins_over_the_message():
    assert find_script(user("[[concur steps=3]]"), {"steps": 5, "generate": 7}) == Script(5, None, 7, {})


def test_directives_in_answers_and_tool_results_do_not_count():
    assert find_script([{"role": "tool", "content": "[[concur steps=3]]"}]) == Script()


@pytest.mark.parametrize(
    ("limit", "ignore_eos", "expected"),
    [
        (None, False, (64, "stop")),
        (10, False, (10, "length")),
        (100, False, (64, "stop")),
        (100, True, (100, "length")),
    ],
)
def test_length_of_a_text(limit, ignore_eos, expected):
    reply = plan_chat(user("hi"), [], None, Script(), limit, ignore_eos=ignore_eos)
    assert (reply.tokens, reply.finish_reason) == expected


def test_tool_choice_is_obeyed():
    script = Script(steps=5)
    assert plan_chat(user("x"), [SEARCH], "none", script, None).call is None
    assert plan_chat(user("x"), [SEARCH], "required", Script(), None).call.name == "search"
    chosen = {"type": "function", "function": {"name": "search"}}
    assert plan_chat(user("x"), [SEARCH], chosen, Script(), None).call.name == "search"


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("steps=0", r"concur\.steps=0"),
        ("generate=many", r"concur\.generate='many'"),
        ("steps=3 tool=browse", "tool='browse' is not among the tools offered: search"),
        ("steps=3 new_tokens=lots", "new_tokens='lots' in the directive does not fit"),
    ],
)
def test_bad_directives_name_the_field(directive, message):
    messages = user(f"[[concur {directive}]]")
    with pytest.raises(InvalidValueError, match=message):
        plan_chat(messages, [SEARCH], None, find_script(messages), None)
