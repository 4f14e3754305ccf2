"""What this project trains and measures itself: `python -m experiments NAME ...` in a checkout."""

import sys

from ssl_jax import extras

try:
    from ssl_jax import evals  # noqa: F401  # it imports most libraries that the scripts need
except ModuleNotFoundError as error:
    if not (line := extras.missing(error)):
        raise
    print(line, file=sys.stderr)
    sys.exit(2)
