"""AutoGen under a concur-agents controller: a wrapped model client, and runs that give their place back.

Example:
    client = ConcurChatCompletionClient(OpenAIChatCompletionClient(...), controller)
    result = await run(controller, team, task="...")
"""

from concur_autogen.batch import BatchResult, run_batch
from concur_autogen.boundaries import with_boundaries
from concur_autogen.client import ConcurChatCompletionClient, ConcurClientConfig
from concur_autogen.registry import register, registered
from concur_autogen.running import run, run_stream

__all__ = [
    "BatchResult",
    "ConcurChatCompletionClient",
    "ConcurClientConfig",
    "register",
    "registered",
    "run",
    "run_batch",
    "run_stream",
    "with_boundaries",
]
