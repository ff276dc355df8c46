"""The command `help`: pages that explain a topic, which come with the program."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def list_pages() -> dict[str, Traversable]:
    """The pages by topic, in alphabetical order."""
    folder = resources.files("collbench.cli") / "pages"
    pages = sorted(folder.iterdir(), key=lambda page: page.name)
    return {page.name.removesuffix(".md"): page for page in pages if page.name.endswith(".md")}


Topic = Annotated[
    str,
    typer.Argument(
        metavar="[TOPIC|COMMAND]",
        help="Without one, topics and commands are listed.",
        autocompletion=lambda: list(list_pages()),
    ),
]

END = """
collbench help TOPIC shows a page, collbench COMMAND --help a command's options."""


@dataclass(frozen=True, kw_only=True)
class HelpOptions:
    """The topic or command to explain."""

    topic: Topic = ""


def help_(ctx: typer.Context, options: HelpOptions) -> None:
    """Explain a topic in a page, or a command's options."""
    if not options.topic:
        return _print_topics(ctx)
    if (page := list_pages().get(options.topic)) is None:
        return _print_options(ctx, options.topic)
    from collbench.show import terminal

    terminal.print_page(page.read_text(encoding="utf-8"))


def _print_topics(context: typer.Context) -> None:
    """Print topics and commands, a line or two each, as --help prints commands."""
    root = context.find_root()
    group: Any = root.command
    formatter = root.make_formatter()
    with formatter.section("Topics"):
        titles = [
            (name, _find_title(page.read_text(encoding="utf-8")))
            for name, page in list_pages().items()
        ]
        formatter.write_dl(titles)
    group.format_commands(root, formatter)
    typer.echo(formatter.getvalue().lstrip("\n").rstrip() + "\n" + END)


def _find_title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _print_options(context: typer.Context, name: str) -> None:
    """Print a command's --help. Raises UsageError where there is none, and no such topic."""
    from collbench.core.text import suggest_name

    root = context.find_root()
    group: Any = root.command
    if group.get_command(root, name) is None:
        names = [*list_pages(), *group.list_commands(root)]
        hint = suggest_name(name, names) or "collbench help lists the topics"
        raise UsageError(f"no topic and no command '{name[:80]}'", hint)
    group.main([name, "--help"], prog_name=root.info_name, standalone_mode=False)
