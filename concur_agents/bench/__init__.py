"""Workloads x policies x engines: one table, one picture."""
