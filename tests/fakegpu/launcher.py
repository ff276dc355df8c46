"""Run a command on the fake GPU: fakegpu COMMAND...

FAKE_GPUS (2 unless set) devices stand in a /dev of its own, which needs root or user namespaces;
where neither is allowed, `--backend nccl` must be asked for, as collbench looks for /dev/nvidia0.
"""

import os
import shutil
import sys
from pathlib import Path

HOME = Path(sys.argv[0]).resolve().parent.parent  # the environment that build.py made
RESETS_LOG = (2, 24)  # NCCL's version that brought ncclResetDebugInit
DEVICES = r"""
set -e
mount -t tmpfs none "$0"
for path in /dev/*; do
  name=${path##*/}
  if [ -L "$path" ]; then cp -P "$path" "$0/$name"
  elif [ -d "$path" ]; then mkdir "$0/$name"; mount --rbind "$path" "$0/$name"
  elif [ -e "$path" ]; then : > "$0/$name"; mount --bind "$path" "$0/$name"; fi
done
i=0; while [ $i -lt "$FAKE_GPUS" ]; do : > "$0/nvidia$i"; i=$((i + 1)); done
mount --rbind "$0" /dev
exec "$@"
"""


def main() -> None:
    os.environ.setdefault("FAKE_GPUS", "2")
    os.environ["PATH"] = f"{HOME / 'bin'}:{os.environ['PATH']}"
    libraries = HOME / ("fake-without-nvml" if os.environ.get("FAKE_NO_NVML") else "fake")
    os.environ["LD_LIBRARY_PATH"] = str(libraries)
    os.environ["TRITON_LIBCUDA_PATH"] = str(libraries)
    os.environ.setdefault("TRITON_CACHE_DIR", str(HOME / "triton"))
    version = os.environ.get("FAKE_NCCL")
    if version and tuple(map(int, version.split(".")[:2])) < RESETS_LOG:
        os.environ["LD_PRELOAD"] = str(HOME / "nccl-before-2.24" / "libnccl.so.2")
    command = sys.argv[1:]
    if Path("/dev/nvidia0").exists() or not shutil.which("unshare"):
        os.execvp(command[0], command)
    folder = HOME / "dev"
    folder.mkdir(exist_ok=True)
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvp("unshare", ["unshare", "--mount", *user, "sh", "-c", DEVICES, str(folder), *command])


main()
