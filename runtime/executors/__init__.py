"""Executors: the same command list on NumPy; the audit behind ``sanitize=True``."""

from runtime.executors.host import HostExecutor
from runtime.executors.pool import ExecutorPool

__all__ = ["ExecutorPool", "HostExecutor"]
