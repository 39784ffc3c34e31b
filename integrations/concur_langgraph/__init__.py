"""LangGraph and LangChain on a `concur_agents.Controller`.

graph = gated(builder.compile(), controller)                           # any graph, agent or Runnable
with concur_scope(controller): await graph.abatch(inputs)              # nothing below changes
insert_gate(builder, before="agent")                                   # a visible gate in a StateGraph
create_agent(model, tools, middleware=[ConcurMiddleware(controller)])  # tags requests, tells who waits

`gated` or `concur_scope` enforces; the gate node and the middleware make it visible.
"""

from typing import TYPE_CHECKING

from concur_agents.errors import MissingExtraError
from concur_langgraph.batch import run_batch, run_batch_blocking
from concur_langgraph.batch_run import BatchResult
from concur_langgraph.gate_node import GateNode, insert_gate
from concur_langgraph.handler import ConcurCallbackHandler, gated
from concur_langgraph.runs import AGENT_ID, SESSION_ID
from concur_langgraph.scope import concur_scope

if TYPE_CHECKING:
    from concur_langgraph.middleware import ConcurMiddleware

__all__ = [
    "AGENT_ID",
    "SESSION_ID",
    "BatchResult",
    "ConcurCallbackHandler",
    "ConcurMiddleware",
    "GateNode",
    "concur_scope",
    "gated",
    "insert_gate",
    "run_batch",
    "run_batch_blocking",
]


def __getattr__(name: str) -> object:
    if name != "ConcurMiddleware":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        from concur_langgraph.middleware import ConcurMiddleware
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "langchain":
            raise
        msg = "ConcurMiddleware is for create_agent, which is in langchain: pip install langchain"
        raise MissingExtraError(msg) from error
    return ConcurMiddleware
