"""`python -m ssl_jax` is the same program as `ssl-jax`."""

import sys

from ssl_jax import cli

if __name__ == "__main__":  # data workers are spawned and import this module again
    sys.exit(cli.main())
