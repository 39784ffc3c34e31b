"""An engine's metrics endpoint, read as a `Reading`: `VLLM`, `SGLang`, or `detect` when it is either."""

from concur_agents.telemetry.base import Telemetry
from concur_agents.telemetry.detect import detect
from concur_agents.telemetry.sglang import SGLang
from concur_agents.telemetry.vllm import VLLM

__all__ = ["VLLM", "SGLang", "Telemetry", "detect"]
