"""`ssl-jax check`: whether the checkpoints of a run are what was saved."""

from absl import flags

from ssl_jax.config import InputError

HELP = """ssl-jax check RUN [RUN ...]

Verifies every checkpoint of a run: compares arrays, config and data position with their saved
checksums. Changes nothing; needs the memory of one checkpoint, but not the devices of the run.

  RUN    a run directory, or the directory of one checkpoint

Training resumes from the newest intact checkpoint by itself, and keeps damaged ones in the folder
damaged/ of the run.

Examples:
  ssl-jax check runs/a
  ssl-jax check runs/a/checkpoints/4000

Exit codes: 0 all intact; 2 bad input, or one is damaged; 1 unexpected error.
"""


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    folders = flags.FlagValues()(argv)[1:]
    if not folders:
        raise InputError("check needs a run directory; for example ssl-jax check runs/a")

    from ssl_jax.train import checkpoint

    damaged = 0
    for path in folders:
        folder, step = checkpoint.locate(path)
        saved = checkpoint.Checkpoints(folder, create=False)
        steps = saved.steps() if step is None else [step]
        if not steps:
            raise InputError(f"{folder} holds no complete checkpoint")
        for step in steps:
            try:
                count = saved.check(step)
                found = f"intact, {count} arrays" if count else "readable, saved without checksums"
                print(f"{folder / str(step)}: {found}", flush=True)
            except checkpoint.Damaged as error:
                damaged += 1
                print(error, flush=True)
        saved.close()
    return 2 if damaged else 0
