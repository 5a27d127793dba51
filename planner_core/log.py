"""Owns the library's voice: what options ask to be told goes to the logger ``rlx_viz``, never to standard output."""

from __future__ import annotations

import logging

__all__ = ["LOG", "tell"]

LOG = logging.getLogger("rlx_viz")


def tell(topic: str, text: str) -> None:
    """Say what an option asked for, at INFO on ``rlx_viz.<topic>``. Where nobody set up logging it goes to standard error,
    so that the option is seen to work in a notebook and on a command line."""
    if not LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOG.addHandler(handler)
        LOG.propagate = False
        LOG.setLevel(logging.INFO)
    LOG.getChild(topic).info(text)
