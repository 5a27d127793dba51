"""Owns the version: one place, for the package, footers and caches."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
