"""`ssl-jax` with a clock that jumps: python -m tests.chaos.clock SECONDS train ..."""

import random
import sys
import threading
import time


def jump_by(seconds: float, after: float) -> None:
    """From `after` seconds on, `time.time` is `seconds` ahead. The monotonic clock does not jump:
    the system promises that."""
    true, ahead = time.time, [0.0]
    time.time = lambda: true() + ahead[0]

    def jump():
        ahead[0] = seconds

    timer = threading.Timer(after, jump)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    jump_by(float(sys.argv.pop(1)), random.Random(0).uniform(1, 8))
    from ssl_jax.__main__ import main

    sys.exit(main())
