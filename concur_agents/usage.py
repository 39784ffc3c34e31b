"""Reading a usage record, whatever client it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concur_agents.errors import InvalidValueError
from concur_agents.lifecycle import Usage


def as_usage(record: Any) -> Usage | None:  # noqa: ANN401
    """A `Usage` from one of ours, an OpenAI usage object or mapping (chat, completions or responses).

    None stays None: the engine did not say. `cached_tokens` comes from
    `prompt_tokens_details.cached_tokens` (or `input_tokens_details`), where the engine reports it.

    Raises:
        InvalidValueError: the record has no prompt token count, or a count is out of range.
    """
    if record is None or isinstance(record, Usage):
        return record
    prompt = _get(record, "prompt_tokens", "input_tokens")
    if prompt is None:
        msg = f"usage={record!r} has no prompt_tokens: expected a Usage or an OpenAI usage record"
        raise InvalidValueError(msg)
    details = _get(record, "prompt_tokens_details", "input_tokens_details")
    cached = _get(details, "cached_tokens") if details is not None else None
    return Usage(prompt, _get(record, "completion_tokens", "output_tokens") or 0, cached)


def _get(record: Any, *names: str) -> Any:  # noqa: ANN401
    """The first of `names` that the mapping or object has and that is not None."""
    for name in names:
        value = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
        if value is not None:
            return value
    return None
