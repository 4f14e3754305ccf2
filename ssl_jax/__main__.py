"""The program `ssl-jax`, also as `python -m ssl_jax`."""

import contextlib
import os
import signal
import sys

from ssl_jax import extras
from ssl_jax.runtime import output, pages, stop


def main() -> int:
    """Runs the command line; returns its exit code, 2 with one line if an extra is missing."""
    output.ensure()
    if "jax" not in sys.modules:  # with JAX imported, the caller's process must not be restarted
        pages.restart_with_huge_pages()
    # Before slow imports, so that a signal is handled from the start.
    signals = stop.listening(whole=True) if _is_train() else contextlib.nullcontext()
    try:
        with signals:
            from ssl_jax import cli

            return cli.main()
    except stop.Interrupted:
        return stop.EXIT_PREEMPTED
    except KeyboardInterrupt:  # one line, and the end that shells expect after Ctrl-C
        print("ssl-jax: stopped", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    except ModuleNotFoundError as error:
        line = extras.missing(error)
        if line is None:
            raise
        print(f"ssl-jax: {line}", file=sys.stderr)
        return 2


def _is_train() -> bool:
    """Whether the first word that is no flag, and no flag's value (--platform cpu), is "train"."""
    follows = False
    for word in sys.argv[1:]:
        if word.startswith("-"):
            follows = "=" not in word
        elif follows:
            follows = False
        else:
            return word == "train"
    return False


if __name__ == "__main__":  # data workers are spawned and import this module again
    sys.exit(main())
