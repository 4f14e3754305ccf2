"""`ssl-jax train`: pretrains, or continues a run."""

from ssl_jax.cli import arguments
from ssl_jax.config import InputError

HELP = """ssl-jax train --config=NAME[:VARIANT] --workdir=FOLDER [--config.KEY=VALUE ...]
ssl-jax train --row=PAPER/ROW --workdir=FOLDER [--config.KEY=VALUE ...]

Trains a network. Run the same command again to resume a run that was stopped or killed.

  --config=NAME[:VARIANT]   a config of the package (sop:vits16, quickstart) or a file
                            (configs/mine.py:large)
  --row=PAPER/ROW           a row of a paper's table, see ssl-jax show --paper=PAPER
  --workdir=FOLDER          run directory: checkpoints, metrics, pictures
  --config.KEY=VALUE        override a setting, see ssl-jax show --config=NAME
  --import=MODULE           import a module first, for example one that registers a method
  --extend=STEPS            extend the run to STEPS total steps; give the other arguments as
                            before
  --config.init_from=PATH   start from published weights or from another run
  --profile=STEP:COUNT      trace COUNT steps, starting at STEP, into the folder profile of the
                            run, and print the ten most expensive operations
  --distributed             train with several processes that SLURM, Open MPI, a TPU slice or
                            GKE started
  --coordinator=ADDRESS:PORT --num-processes=N --process-id=I
                            train with several processes anywhere: the address of process 0,
                            the number of processes, and the number of this one (0 to N - 1)

Examples:
  ssl-jax train --config=quickstart --workdir=runs/quickstart
  ssl-jax train --config=sop:vits16 --config.data.dir=/data/tfds --config.optim.lr=1e-3 \\
      --workdir=runs/a
  ssl-jax train --row=sop/table10/K1024 --config.data.dir=/data/tfds --workdir=runs/k1024
  ssl-jax train --import=mine.method --config=mine/config.py --workdir=runs/mine
  ssl-jax train --config=quickstart --workdir=runs/quickstart --extend=3000

Ctrl-C saves a checkpoint after the current step and stops; a second one stops at once.

Exit codes: 0 done; 2 bad input; 75 stopped by SIGTERM, SIGINT or SIGUSR1, nothing is lost,
start again to resume; 130 stopped at once by a second SIGINT; 1 unexpected error.
"""


def run(argv: list[str]) -> int:
    """Runs the command; returns the exit code."""
    layers, _, rest = arguments.start(argv)
    *_, config = layers.values()
    place = ("coordinator", "num-processes", "process-id")
    flags = dict(distributed=False) | dict.fromkeys(("workdir", "profile", "extend", *place))
    values, config = arguments.parse(rest, config, **flags)
    if not values.workdir:
        raise InputError("train needs --workdir=FOLDER for checkpoints, metrics and pictures")
    if "://" in values.workdir:
        raise InputError(
            f"--workdir is {values.workdir}; it must be a folder, for example a mounted bucket"
        )
    from ssl_jax import api
    from ssl_jax.cli import cache
    from ssl_jax.runtime import distributed
    from ssl_jax.train import profile

    steps = profile.parse(values.profile) if values.profile else None
    extend = arguments.number(values.extend, "extend")
    cache.keep_programs()
    coordinator, count, index = (values[name].value for name in place)
    if values.distributed or any((coordinator, count, index)):
        distributed.connect(
            coordinator,
            arguments.number(count, "num-processes"),
            arguments.number(index, "process-id"),
        )
    with distributed.together():
        keys = arguments.given(rest, config)
        return api.train(config, values.workdir, given=keys, steps=steps, extend=extend)
