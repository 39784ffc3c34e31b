"""What every batch runner of the integrations needs: names, a schedule, a bar."""

from concur_agents.batch.bar import Bar, bar_on_stderr
from concur_agents.batch.names import checked_names
from concur_agents.batch.schedule import Schedule, Started

__all__ = ["Bar", "Schedule", "Started", "bar_on_stderr", "checked_names"]
