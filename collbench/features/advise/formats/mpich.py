"""MPICH's trees of choices, in JSON: two in one file, and the second in one beside it, too.

What the library does (MPICH 5.0):
- The file of MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE takes the place of a tree that is built into
  the library, and has to have all collectives: so that one is read from libmpi, and rows are put
  into it. What stands behind the first tree is not read, and comments are.
- Where ranks of a host share memory, MPIR_CVAR_CH4_POSIX_COLL_SELECTION_TUNING_JSON_FILE decides
  before it whether broadcast, reduce and all_reduce run by release_gather.
- A tree is walked from the top: the first key that fits. A size is avg_msg_size for collectives
  whose buffers are not divided, total_msg_size for the others: both are collbench's count. Of
  gather and scatter ranks may see different sizes, and scan and all_to_allv have none.
- Numbers have 32 bits. An unknown key or algorithm ends the program.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.features.advise.formats import MARK, Format, Rule
from collbench.features.advise.formats._rows import (
    comment,
    cut_range,
    describe_row,
    fail_line,
    format_path,
    refuse_shared,
    sort_rows,
    write_head,
)
from collbench.features.advise.formats.files import name_companion, read_file
from collbench.features.advise.libraries.mpich import FUNCTIONS, GENERIC, PREFIX, split_word
from collbench.features.advise.types import Advice, Advised

Tree = dict[str, Any]

MAX_NUMBER = (1 << 31) - 1
MAX_RANKS = 1 << 14  # for which ranges are written out as rules
MAX_BYTES = 1 << 20
LIBRARY_NAMES = ("libmpi.so.12", "libmpich.so.12")
GENERIC_FILE = f"{PREFIX}COLL_SELECTION_TUNING_JSON_FILE"
SHARED_FILE = f"{PREFIX}CH4_POSIX_COLL_SELECTION_TUNING_JSON_FILE"
POSIX = ".posix"  # what the name of the second tree's file ends in
INTRA = "comm_type=intra"
UNLIKE = "is_multi_threaded=yes"  # never so below is_multi_threaded=no: nothing is chosen there
_WRAPPED = re.compile(r"is_commutative=yes|is_op_built_in=yes|count=any|is_sendbuf_inplace=no")
_BOUND = re.compile(r"(comm_size|avg_msg_size|total_msg_size)(?:<=(\d{1,10})|=any)")


class MpichTrees(Format):
    """The file of MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE, with a second tree behind it."""

    key = "mpich"
    title = "MPICH's trees of choices"
    suffix = ".json"
    by_size, covers_all = True, False
    companions = (POSIX,)

    def refuse(self, advised: Advised) -> str:
        for row in advised.rows:
            if reason := _refuse_row(row):
                return reason
        if not advised.rows:
            return ""
        return refuse_shared(advised.rows) or _refuse_library(advised.version)

    def write(self, advised: Advised, path: Path | None = None) -> str:
        self.refuse_unsayable(advised)
        comments = _write_comments(advised, self.title, path)
        if not advised.rows:
            return "\n".join(comments) + "\n"
        generic, shared = json.loads(json.dumps(find_tree())), _list_shared()
        for collective, group in groupby(sort_rows(advised), lambda row: row.series.collective):
            rows, function = list(group), FUNCTIONS[collective]
            key = f"collective={function.word.lower()}"
            built_in = generic[key][INTRA]
            generic[key][INTRA] = _make_chain(rows, built_in, functools.partial(_choose, built_in))
            if function.shares:
                below = shared[key][INTRA]["is_multi_threaded=no"]
                leaf = below.get("is_commutative=yes", below)
                nothing = functools.partial(_choose_nothing, leaf)
                shared[key][INTRA]["is_multi_threaded=no"] = (
                    {"is_commutative=yes": _make_chain(rows, leaf, nothing)}
                    if leaf is not below
                    else _make_chain(rows, leaf, nothing)
                )
        trees = [json.dumps(tree, indent=1) for tree in (generic, shared)]
        return "\n".join([*comments, *trees]) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        generic, shared = _split_trees(text)
        return [
            rule
            for collective, function in FUNCTIONS.items()
            for rule in _read_collective(
                collective, text, generic.get(f"collective={function.word.lower()}", {}), shared
            )
        ]

    def split_parts(self, text: str) -> dict[str, str]:
        _, shared = _split_trees(text)
        head = f"/* {MARK}: the second tree of MPICH's file beside it: keep both together. */"
        return {POSIX: f"{head}\n{json.dumps(shared, indent=1)}\n"} if shared else {}

    def use(self, path: Path) -> dict[str, str]:
        generic, shared = _split_trees(read_file(path, MAX_BYTES))
        if not generic:
            return {}
        beside = name_companion(path, POSIX)
        text = read_file(beside, MAX_BYTES)
        if _blank_comments(text).strip() != json.dumps(shared, indent=1):
            raise UsageError(
                f"{beside} is not the one that belongs to {path.name}",
                "keep both files together as they were written",
            )
        return {GENERIC_FILE: str(path), SHARED_FILE: str(beside)}


def _write_comments(advised: Advised, title: str, path: Path | None) -> list[str]:
    """The head and what is to say of rows, as comments of JSON as MPICH reads it."""
    commands = [
        f"export {GENERIC_FILE}={format_path(path)}",
        f"export {SHARED_FILE}={format_path(path, POSIX)}",
    ]
    lines = write_head(advised, title, commands, sign="#")
    if advised.rows:
        lines += comment(describe_row(row, advised.day) for row in sort_rows(advised))
        lines += comment(
            [f"Two trees: MPICH reads the second one from FILE{POSIX}: keep both files together."]
        )
    bare = (line.removeprefix("# ").replace("*/", "* /") for line in lines)
    return [f"/* {line} */" for line in bare]


def find_library() -> Path | None:
    """MPICH's library in the environment of this Python."""
    folders = [Path(sys.prefix) / "lib"]
    paths = [folder / name for folder in folders for name in LIBRARY_NAMES]
    return next((path for path in paths if path.is_file()), None)


@functools.cache
def read_tree(path: Path) -> Tree:
    """The tree that is built into a library: the largest of those that it holds as text. Empty
    where it has none."""
    data = path.read_bytes()
    starts = {data.rfind(b"\0", 0, each.start()) for each in re.finditer(b'"collective=', data)}
    texts = [data[start + 1 : data.find(b"\0", start + 1)] for start in starts]
    for text in sorted(texts, key=len, reverse=True):
        try:
            tree = json.loads(text)
        except ValueError:
            continue
        if "collective=allgather" in tree and "algorithm=MPIR_" in text.decode():
            return dict(tree)
    return {}


def find_tree() -> Tree:
    """The tree of the library in this environment; empty where there is none."""
    path = find_library()
    return read_tree(path) if path else {}


def _refuse_library(version: str) -> str:
    needed = "it has to repeat all choices that are built into MPICH"
    if not (tree := find_tree()):
        return f"{needed}, and this Python's environment has no MPICH to read them from"
    lacking = [
        each.word for each in FUNCTIONS.values() if f"collective={each.word.lower()}" not in tree
    ]
    if lacking:
        return f"{needed}, and the MPICH of this environment has none of {lacking[0]}"
    path, number = find_library(), version.removeprefix("MPICH ").strip()
    if path and re.fullmatch(r"\d+\.\d+[\w.]*", number) and number.encode() not in _read(path):
        return f"{needed}, and the MPICH of this environment is not {number}"
    return ""


@functools.cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


def _refuse_row(row: Advice) -> str:
    function = FUNCTIONS.get(row.series.collective)
    word, rest = split_word(row.series.collective, row.setting.env)
    if row.setting.backend != "mpi":
        return f"{row.name} is a setting of backend {row.setting.backend}"
    if function is None:
        return f"MPICH's trees have no size of {row.series.collective} that all ranks agree on"
    if rest or not word:
        return f"{rest[0][0] if rest else row.name} holds for all sizes"
    if row.high > MAX_NUMBER or row.series.n > MAX_NUMBER:
        return f"numbers end at {MAX_NUMBER}"
    return ""


def _list_shared() -> Tree:
    """Which collectives run by release_gather, as the library's own tree has it."""
    trees: Tree = {}
    for word in ("bcast", "barrier", "allreduce", "reduce"):
        leaf: Tree = {f"algorithm=MPIDI_POSIX_mpi_{word}_release_gather": {}}
        below = {"is_commutative=yes": leaf} if "reduce" in word else leaf
        trees[f"collective={word}"] = {INTRA: {"is_multi_threaded=no": below}}
    return trees


def _make_chain(rows: Sequence[Advice], built_in: Tree, choose: Any) -> Tree:
    """A tree by ranks and sizes: ``built_in`` where no row holds."""
    chain: Tree = {}
    last = 0
    for n, group in groupby(rows, lambda row: row.series.n):
        if n - 1 > last:
            chain[f"comm_size<={n - 1}"] = built_in
        chain[f"comm_size<={n}"] = sizes = {}
        for _, high, row in cut_range(list(group)):
            size = FUNCTIONS[rows[0].series.collective].size
            key = f"{size}=any" if high is None else f"{size}<={high}"
            sizes[key] = built_in if row is None else choose(row)
        last = n
    chain["comm_size=any"] = built_in
    return chain


def _choose(built_in: Tree, row: Advice) -> Tree:
    """A row's algorithm, where it can serve: else what the library chooses."""
    collective = row.series.collective
    word, _ = split_word(collective, row.setting.env)
    if word == GENERIC:
        return built_in
    tree: Tree = {f"algorithm=MPIR_{FUNCTIONS[collective].word.capitalize()}_intra_{word}": {}}
    if word in ("reduce_scatter_allgather", "reduce_scatter_gather"):
        tree = {"count<pow2": built_in, "count=any": tree}
        tree = {"is_op_built_in=no": built_in, "is_op_built_in=yes": tree}
    if COLLECTIVES[collective].reduces:
        tree = {"is_commutative=no": built_in, "is_commutative=yes": tree}
    if collective == "all_to_all":
        tree = {"is_sendbuf_inplace=yes": built_in, "is_sendbuf_inplace=no": tree}
    return tree


def _choose_nothing(leaf: Tree, row: Advice) -> Tree:
    """What keeps a call from release_gather: a tree without a choice."""
    return {UNLIKE: leaf}


def _blank_comments(text: str) -> str:
    """The text with blanks in place of comments."""
    return re.sub(r"/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.S)


def _split_trees(text: str) -> tuple[Tree, Tree]:
    """Both trees of a file, empty where it has comments only. Raises UsageError with the line."""
    bare = _blank_comments(text)
    decoder, at = json.JSONDecoder(), 0
    trees: list[Tree] = []
    while at < len(bare) and (match := re.compile(r"\s*(?=\S)").match(bare, at)):
        try:
            tree, at = decoder.raw_decode(bare, match.end())
        except (ValueError, RecursionError) as e:
            line = bare.count("\n", 0, getattr(e, "pos", match.end())) + 1
            raise fail_line(line, f"it is not JSON: {first_line(e)[:60]}") from e
        line = bare.count("\n", 0, at) + 1
        if not isinstance(tree, dict) or len(trees) == 2:
            raise fail_line(line, "two trees are expected, each in braces")
        trees.append(tree)
    if not trees and text.strip() and "/*" not in text:
        raise fail_line(1, "it has no tree")
    if not text.strip():
        raise fail_line(1, "it is empty")
    if len(trees) == 1:
        raise fail_line(bare.count("\n", 0, at) + 1, "the second tree is missing")
    return (trees[0], trees[1]) if trees else ({}, {})


def _find_line(text: str, key: str) -> int:
    return text.count("\n", 0, max(text.find(json.dumps(key)), 0)) + 1


def _walk_bounds(text: str, tree: Any, what: str) -> list[tuple[int, int | None, Any]]:
    """The branches of a level of bounds: from, to (None: the end), and what is below."""
    branches: list[tuple[int, int | None, Any]] = []
    at = 0
    for key, below in tree.items():
        match = _BOUND.fullmatch(key.replace(" ", ""))
        if match is None or match[1] != what:
            raise fail_line(_find_line(text, key), f"'{key[:40]}' is no bound of {what}")
        high = int(match[2]) if match[2] else None
        most = MAX_RANKS if what == "comm_size" else MAX_NUMBER
        if high is not None and not at <= high <= most:
            raise fail_line(_find_line(text, key), f"{key} is out of order, or too large")
        branches.append((at, high, below))
        if high is None:
            break
        at = high + 1
    if not branches or branches[-1][1] is not None or len(branches) != len(tree):
        last = list(tree)[-1] if tree else ""
        raise fail_line(_find_line(text, last), f"{what} has to end with {what}=any")
    return branches


def _read_collective(collective: str, text: str, tree: Tree, shared: Tree) -> Iterator[Rule]:
    """The rules of one collective: none where its tree is not one of ranks and sizes."""
    function = FUNCTIONS[collective]
    chain = tree.get(INTRA, {})
    if not any(re.fullmatch(r"comm_size<=\d+", key) for key in chain) or "comm_size=any" not in (
        chain
    ):
        return
    built_in = chain["comm_size=any"]
    unshared = _list_unshared(text, function.word.lower(), function.size, shared)
    for first, last, below in _walk_bounds(text, chain, "comm_size"):
        if last is None or below == built_in:
            continue
        for low, high, leaf in _walk_bounds(text, below, function.size):
            name = "" if leaf == built_in else _name_leaf(text, collective, leaf)
            for n in range(max(first, 2), last + 1):
                free = (n, low) in unshared
                if function.shares and not free:
                    name = ""
                elif function.shares and not name:
                    name = GENERIC
                yield Rule(collective, n, None, low, high, name)


def _list_unshared(text: str, word: str, size: str, shared: Tree) -> set[tuple[int, int]]:
    """Ranks and first sizes of the ranges that do not run by release_gather."""
    below = shared.get(f"collective={word}", {}).get(INTRA, {}).get("is_multi_threaded=no", {})
    chain = below.get("is_commutative=yes", below)
    if "comm_size=any" not in chain:
        return set()
    return {
        (n, low)
        for first, last, sizes in _walk_bounds(text, chain, "comm_size")
        if last is not None and sizes != chain["comm_size=any"]
        for low, _, leaf in _walk_bounds(text, sizes, size)
        if list(leaf) == [UNLIKE]
        for n in range(max(first, 2), last + 1)
    }


def _name_leaf(text: str, collective: str, leaf: Any) -> str:
    """The algorithm that a leaf names, below conditions under which it can serve."""
    while wrapped := [key for key in leaf if _WRAPPED.fullmatch(key)]:
        leaf = leaf[wrapped[0]]
    key = next(iter(leaf), "")
    start = f"algorithm=MPIR_{FUNCTIONS[collective].word.capitalize()}_intra_"
    if not key.startswith(start) or key.removeprefix(start) not in FUNCTIONS[collective].algorithms:
        raise fail_line(_find_line(text, key), f"'{key[:60]}' is no algorithm of {collective}")
    return key.removeprefix(start)


FORMATS = (MpichTrees(),)
