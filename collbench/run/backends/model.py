"""Predicted times on a flat network, for which no rank is started."""

from __future__ import annotations

from collbench.core.backend_info import BackendInfo

INFO = BackendInfo(
    about="predicted times on a flat network: the lower bound, and algorithms (ring@model)",
    launch="none",
    groups="none",
    background="none",
    virtual_ranks=True,
)
