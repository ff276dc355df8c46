"""An sshd on each host of a lab, and an ssh that reaches them from the login host, with keys and
configurations of their own in a folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from network import Host, Lab

PORT = "2222"
TOOLS = ("sshd", "ssh", "ssh-keygen")
# Root logs in by its key alone; nothing of the machine's own configuration is read.
SERVER = """Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
"""
CLIENT = """Host *
  Port {port}
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
"""


def why_not() -> str:
    """Why there can be no sshd here, or an empty string."""
    missing = [tool for tool in TOOLS if not _path_of(tool)]
    return f"no {', '.join(missing)}: apt-get install openssh-server" if missing else ""


def _path_of(tool: str) -> str:
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin") or ""


class Shells:
    """Each host of the lab takes connections, but for those that are ``closed``; those ``locked``
    know no key, and those ``unknown`` are not in known_hosts."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        closed: Sequence[str] = (),
        locked: Sequence[str] = (),
        unknown: Sequence[str] = (),
    ) -> None:
        self._lab, self._folder = lab, folder
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        shutil.copy(folder / "user_key.pub", folder / "keys")
        (folder / "no_keys").touch()
        key = (folder / "host_key.pub").read_text().strip()
        (folder / "known_hosts").write_text(
            "".join(
                f"[{name}]:{PORT},[{host.address}]:{PORT} {key}\n"
                for host in lab.hosts
                if (name := host.name) not in unknown
            )
        )
        (folder / "client").write_text(CLIENT.format(port=PORT, folder=folder))
        self._servers = [
            self._serve(host, "no_keys" if host.name in locked else "keys")
            for host in lab.hosts
            if host.name not in closed
        ]

    def _serve(self, host: Host, keys: str) -> subprocess.Popen[bytes]:
        config = self._folder / f"server-{host.name}"
        settings = SERVER.format(port=PORT, folder=self._folder, keys=self._folder / keys)
        config.write_text(settings)
        script = f"mkdir -p /run/sshd && exec {_path_of('sshd')} -D -e -f {config}"
        log = (self._folder / f"log-{host.name}").open("wb")
        with log:
            server = subprocess.Popen(host.enter(["sh", "-c", script]), stderr=log)
        until = time.monotonic() + 20
        while b"listening" not in (self._folder / log.name).read_bytes():
            assert server.poll() is None, (self._folder / log.name).read_text()
            assert time.monotonic() < until, "sshd does not come up"
            time.sleep(0.02)
        return server

    @property
    def command(self) -> str:
        """What --ssh is given."""
        return f"ssh -F {self._folder / 'client'}"

    def start(self, *arguments: str, hosts: str = "") -> subprocess.Popen[str]:
        """``collbench ARGUMENTS`` on the login host, on the hosts of the lab unless others are
        named."""
        listed = hosts or ",".join(host.name for host in self._lab.hosts)
        words = [*arguments, "--launcher", "ssh", "--hosts", listed, "--ssh", self.command]
        here = ["env", "-C", str(Path.cwd())]
        return subprocess.Popen(
            self._lab.login.enter([*here, sys.executable, "-m", "collbench", *words]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *arguments: str, hosts: str = "", seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """``start`` to its end. Raises TimeoutExpired."""
        process = self.start(*arguments, hosts=hosts)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
