"""Agent-level admission control that keeps batches of LLM agents from thrashing an engine's KV cache.

A shared controller admits, pauses and resumes agents at the boundaries between their steps, so that the KV
caches of those that run stay resident (CONCUR, ICML 2026). Start with `Controller`.
"""

from concur_agents.blocking import BlockingController
from concur_agents.controller import Controller
from concur_agents.errors import (
    AgentFinishedError,
    ConcurError,
    ControllerClosedError,
    DuplicateAgentError,
    InvalidValueError,
    MissingExtraError,
    UnknownAgentError,
    WouldDeadlockError,
)
from concur_agents.lifecycle import AgentStatus, Outcome, Usage
from concur_agents.policies import AIMD, Headroom, Policy, RequestLimit, Static, Unlimited
from concur_agents.regulator import Snapshot
from concur_agents.selection import Selection
from concur_agents.signals import Quality, Reading, Signals, Window

__all__ = [
    "AIMD",
    "AgentFinishedError",
    "AgentStatus",
    "BlockingController",
    "ConcurError",
    "Controller",
    "ControllerClosedError",
    "DuplicateAgentError",
    "Headroom",
    "InvalidValueError",
    "MissingExtraError",
    "Outcome",
    "Policy",
    "Quality",
    "Reading",
    "RequestLimit",
    "Selection",
    "Signals",
    "Snapshot",
    "Static",
    "UnknownAgentError",
    "Unlimited",
    "Usage",
    "Window",
    "WouldDeadlockError",
]
