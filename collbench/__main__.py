"""The console script, and ``python -m collbench``: the form torchrun wants."""

import atexit
import os
import signal
import sys
from contextlib import suppress

INTERRUPTED = 130  # core.errors' Exit.INTERRUPTED, before anything is imported


def main() -> None:
    """The command line. From the first moment on SIGTERM and SIGHUP end it as Ctrl-C does, unless
    they are ignored."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
        from collbench.cli.main import main as command

        command()
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
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
