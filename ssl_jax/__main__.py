"""The program `ssl-jax`, also as `python -m ssl_jax`."""

import sys

from ssl_jax import extras


def main() -> int:
    """Runs the command line; returns its exit code, 2 with one line if an extra is missing."""
    try:
        from ssl_jax import cli

        return cli.main()
    except ModuleNotFoundError as error:
        line = extras.missing(error)
        if line is None:
            raise
        print(f"ssl-jax: {line}", file=sys.stderr)
        return 2


if __name__ == "__main__":  # data workers are spawned and import this module again
    sys.exit(main())
