"""Which context a call continues: by what was said, not by who says so."""

from __future__ import annotations

from autogen_core.models import AssistantMessage, SystemMessage, UserMessage
from concur_autogen.conversations import Conversation, Conversations, caller_of, characters, is_one_shot
from hypothesis import given
from hypothesis import strategies as st


class Turn:
    """Stands for a task."""

    def __init__(self, over: bool = False) -> None:
        self.over = over

    def done(self) -> bool:
        return self.over


def user(text: str) -> UserMessage:
    return UserMessage(content=text, source="user")


def begun(conversations: Conversations, name: str, messages, task, caller=("", "")) -> Conversation:
    conversation = Conversation(name, caller)
    conversations.begin(conversation, messages, task)
    conversation.busy = False
    return conversation


def test_a_call_that_begins_with_what_was_said_continues_it():
    known, turn = Conversations(), Turn()
    said = [user("a"), user("b")]
    first = begun(known, "first", said, turn)
    assert known.find(("", ""), [*said, user("c")], turn) is first
    assert known.find(("", ""), [user("a"), user("b")], Turn()) is first, "equal messages will do"
    assert not first.rewritten


def test_trimmed_history_is_the_same_context_rewritten():
    known, turn = Conversations(), Turn()
    first = begun(known, "first", [user("a"), user("b"), user("c")], turn)
    assert known.find(("", ""), [user("b"), user("c"), user("d")], turn) is first
    assert first.rewritten
    assert known.find(("", ""), list(first.messages), turn) is first
    assert not first.rewritten


def test_the_next_turn_of_an_agent_may_rewrite_what_the_last_one_said():
    known, last = Conversations(), Turn(over=True)
    first = begun(known, "first", [user("a"), user("b")], last)
    assert known.find(("", ""), [user("b")], Turn()) is first


def test_a_call_in_the_middle_of_another_turn_is_an_agent_of_its_own():
    known, turn = Conversations(), Turn()
    begun(known, "parent", [user("a")], turn)
    assert known.find(("", ""), [user("help")], Turn()) is None


def test_busy_conversations_are_left_alone():
    known, turn = Conversations(), Turn()
    first = begun(known, "first", [user("a")], turn)
    first.busy = True
    assert known.find(("", ""), [user("a")], turn) is None


def test_callers_are_told_apart_by_participant_and_system_prompt():
    prompt = SystemMessage(content="You are ann.")
    assert caller_of("ann_1", [prompt, user("a")]) == ("ann_1", "You are ann.")
    assert caller_of("", [user("a")]) == ("", "")
    known, turn = Conversations(), Turn()
    begun(known, "ann", [user("a")], turn, ("ann", ""))
    assert known.find(("bob", ""), [user("a")], turn) is None


def test_selectors_are_one_shot_and_not_kept():
    assert is_one_shot("SelectorGroupChatManager_1234")
    assert not is_one_shot("selector")
    known = Conversations()
    known.begin(Conversation("s", ("", ""), one_shot=True), [user("a")], None)
    assert len(known) == 0


def test_characters_count_calls_and_results_too():
    from autogen_core import FunctionCall

    asked = AssistantMessage(content=[FunctionCall(id="1", name="abc", arguments="{}")], source="a")
    assert characters([user("four"), asked]) == 4 + 5


texts = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


@given(said=texts, more=texts)
def test_whatever_follows_continues(said, more):
    known, turn = Conversations(), Turn()
    first = begun(known, "first", [user(t) for t in said], turn)
    assert known.find(("", ""), [user(t) for t in said + more], turn) is first
    assert not first.rewritten


@given(said=texts, asked=texts)
def test_in_one_turn_there_is_one_conversation_a_caller(said, asked):
    known, turn = Conversations(), Turn()
    begun(known, "first", [user(t) for t in said], turn)
    found = known.find(("", ""), [user(t) for t in asked], turn)
    assert found is not None
    assert found.rewritten == (asked[: len(said)] != said)


moves = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=40)


@given(moves=moves)
def test_agents_that_take_turns_stay_in_their_own_conversations(moves):
    """Four agents of one prompt, each in a turn of its own, in any order; some calls overlap."""
    known, count = Conversations(), 0
    turns = [Turn() for _ in range(4)]
    said: list[list[UserMessage]] = [[user(f"task {n}")] for n in range(4)]
    mine: dict[int, Conversation] = {}
    for who, overlaps, trims in moves:
        if who in mine and mine[who].busy:
            mine[who].busy = False  # its call is over
            continue
        if trims and who in mine:
            said[who] = said[who][-1:]
        count += 1
        said[who] = [*said[who], user(f"{who}: {count}")]
        found = known.find(("", ""), said[who], turns[who])
        assert found is mine.get(who)
        if found is None:
            found = mine[who] = Conversation(f"c{who}", ("", ""))
        else:
            assert found.rewritten == (said[who][0] != found.messages[0])
        known.begin(found, said[who], turns[who])
        found.busy = overlaps
    assert len(known) == len(mine)
