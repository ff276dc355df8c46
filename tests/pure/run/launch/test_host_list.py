"""Lists of hosts: words and files, what is refused, and that none becomes an option of ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.core.errors import UsageError
from collbench.run.launch.host_list import FILE_MAX, ListedHost, parse_hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("a", 1)]),
        ("a,b:8", [("a", 1), ("b", 8)]),
        ("a , b:2", [("a", 1), ("b", 2)]),
        ("user@host.example:4", [("user@host.example", 4)]),
        ("[fe80::1]:8", [("fe80::1", 8)]),
        ("root@[2001:db8::7],10.0.0.1:2", [("root@2001:db8::7", 1), ("10.0.0.1", 2)]),
        ("[fe80::1%eth0]", [("fe80::1%eth0", 1)]),
        ("node[01-03,7]:2", [("node01", 2), ("node02", 2), ("node03", 2), ("node7", 2)]),
        ("u@n[1-2],z", [("u@n1", 1), ("u@n2", 1), ("z", 1)]),
    ],
)
def test_words(text: str, expected: list[tuple[str, int]]) -> None:
    assert [(host.target, host.slots) for host in parse_hosts(text)] == expected


def test_a_list_may_be_longer_than_a_files_name() -> None:
    assert len(parse_hosts(",".join(f"node{number:03d}" for number in range(600)))) == 600


def test_a_file_has_a_host_a_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# ours\n\na slots=8\nuser@b:2   # by the window\nc slots=4 max_slots=8\nd\n"
        "[fe80::1] slots=3 python=/opt/x/bin/python\r\n"
    )
    expected = (
        ListedHost("a", 8),
        ListedHost("user@b", 2),
        ListedHost("c", 4),
        ListedHost("d", 1),
        ListedHost("fe80::1", 3, "/opt/x/bin/python"),
    )
    assert parse_hosts(str(path)) == expected
    assert parse_hosts(f"@{path}") == expected


def test_a_file_of_this_folder_needs_no_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("a:8\n")
    assert parse_hosts("mine") == (ListedHost("a", 8),)
    assert parse_hosts("yours") == (ListedHost("yours", 1),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-oProxyCommand=touch", "is not a host"),
        ("-F", "is not a host"),
        ("root@-oProxyCommand=x", "is not a host"),
        ("-root@a", "is not a host"),
        ("[-oX]", "is not a host"),
        ("a;reboot", "is not a host"),
        ("$(reboot)", "is not a host"),
        ("a b", "is not a host"),
        ("a'", "is not a host"),
        ("ä", "is not a host"),
        ("a:b", "is not a host"),
        ("a:", "is not a host"),
        ("a:-1", "is not a host"),
        ("fe80::1", "is not a host"),
        ("[fe80::1", "is not a host"),
        ("a:0", "is not a number of ranks"),
        ("a:4097", "is not a number of ranks"),
        (f"a:{10**30}", "is not a number of ranks"),
        ("a,b:2,a:3", "a is there twice"),
        ("a,u@A", "A is there twice"),
        ("node[1-2],node2", "node2 is there twice"),
        (",", "no host is named"),
        ("n[1-999999999]", "is not a range of hosts"),
        ("@", "Is a directory"),
        ("./absent", "No such file"),
        ("absent.txt", "No such file"),
        ("@absent.txt", "No such file"),
        ("@~nobody-has-this-name/hosts", "this home folder is unknown"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert words in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no host is named"),
        (b"# nobody\n\n", "no host is named"),
        (b"a\nb slots=\n", "line 2: nothing is not a number of ranks"),
        (b"a slots=x\n", "line 1: x is not a number of ranks"),
        (b"a:2 slots=3\n", "line 1: 'slots=3' is not known"),
        (b"a cores=3\n", "line 1: 'cores=3' is not known"),
        (b"a python=\n", "line 1: 'python=' is not known"),
        (b"a 8\n", "line 1: '8' is not known"),
        (b"a\n-oX\n", "line 2: '-oX' is not a host"),
        (b"a\x1b[2J\n", "is not a host"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"a\n" * FILE_MAX, "larger than 4 MiB"),
        (b"a\nb\na\n", "a is there twice"),
    ],
)
def test_what_is_refused_of_a_file(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        parse_hosts(str(path))
    assert words in caught.value.message
    assert caught.value.message.isprintable()
