"""Agent-level admission control for batches of LLM agents."""
