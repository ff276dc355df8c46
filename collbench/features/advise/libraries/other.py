"""A library of which nothing is known: its settings are what users say."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World


class Other:
    """Any library. Every variable counts, and there is none to propose."""

    key = "other"
    title = "this library"
    formats: tuple[str, ...] = ("words",)

    def is_of(self, world: World) -> bool:
        return True

    def reduce(self, collective: str, env: Variables) -> Variables:
        return tuple(sorted(env))

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        return ()

    def is_detail(self, collective: str, name: str) -> bool:
        return False

    def name_setting(self, collective: str, setting: Setting) -> str:
        words = [f"{name}={value}" for name, value in setting.env]
        if setting.algorithm != "native":
            words.insert(0, setting.algorithm)
        return " ".join(words) or setting.backend


LIBRARY = Other()
