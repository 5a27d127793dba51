"""Executors: the same command list on NumPy; the audit behind ``sanitize=True``."""

from runtime.executors.host import HostExecutor

__all__ = ["HostExecutor"]
