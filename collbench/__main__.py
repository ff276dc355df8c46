"""The console script, and ``python -m collbench``: the form torchrun wants."""

import atexit
import os
import sys
from contextlib import suppress

INTERRUPTED = 130  # core.errors' Exit.INTERRUPTED, before more is imported

if __name__ == "__main__" and not sys.flags.safe_path and os.path.isdir(sys.path[0]):  # noqa: PTH112
    # -m puts the current folder first, where files may be named as modules are
    current = sys.path.pop(0)
    if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == current:  # noqa: PTH100, PTH120
        sys.path.append(current)
try:
    from collbench.survive import streams
    from collbench.survive.signals import interrupts
except KeyboardInterrupt:  # it came before anything could wait for it
    os._exit(INTERRUPTED)


def main() -> None:
    """The command line. From the first moment on SIGTERM and SIGHUP end it as Ctrl-C does, unless
    they are ignored."""
    try:
        streams.secure_streams()
        interrupts.__enter__()  # to the end of this process
        from collbench.cli.main import main as command

        command()
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
    except KeyboardInterrupt:
        pass
    except Exception:  # a module may have made an error of its own of the interrupt
        if not interrupts.requested:
            raise
    # sys.exit would not do: Python ends by SIGINT all the same where the signal came while it
    # evaluated a string, as modules do when they make a class
    with suppress(OSError):  # nobody reads on
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
