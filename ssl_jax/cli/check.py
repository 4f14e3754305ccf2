"""`ssl-jax check`: verifies the checkpoints of a run."""

import argparse

from ssl_jax.config import InputError
from ssl_jax.train import checkpoint


def run(options: argparse.Namespace) -> int:
    damaged = 0
    for path in options.run:
        folder, step = checkpoint.locate(path)
        saved = checkpoint.Checkpoints(folder, create=False)
        steps = saved.steps() if step is None else [step]
        if not steps:
            raise InputError(f"{folder} holds no complete checkpoint")
        for step in steps:
            try:
                count = saved.check(step)
                state = f"intact, {count} arrays" if count else "readable, saved without checksums"
                print(f"{folder / str(step)}: {state}", flush=True)
            except checkpoint.Damaged as error:
                damaged += 1
                print(error, flush=True)
        saved.close()
    return 2 if damaged else 0
