"""LangGraph and LangChain on a `concur_agents.Controller`.

graph = gated(builder.compile(), controller)     # any compiled graph, agent or Runnable
builder.add_node(GateNode(controller))           # a visible gate in a StateGraph
"""

from concur_langgraph.gate_node import GateNode
from concur_langgraph.handler import ConcurCallbackHandler, gated
from concur_langgraph.runs import AGENT_ID

__all__ = ["AGENT_ID", "ConcurCallbackHandler", "GateNode", "gated"]
