"""`ssl-jax train`: trains or resumes a run."""

import argparse

from ssl_jax.cli import arguments
from ssl_jax.config import InputError


def run(options: argparse.Namespace) -> int:
    *_, config, given = arguments.start(options)
    if not options.workdir or "://" in options.workdir:
        raise InputError(
            f"--workdir is {options.workdir!r}; it must be a folder, for example a mounted bucket"
        )
    from ssl_jax import api
    from ssl_jax.cli import cache
    from ssl_jax.runtime import distributed
    from ssl_jax.train import profile

    steps = profile.parse(options.profile) if options.profile else None
    cache.keep_programs()
    place = options.coordinator, options.num_processes, options.process_id
    if options.distributed or any(value is not None for value in place):
        distributed.connect(*place)
    with distributed.together():
        cache.only_shared()
        return api.train(config, options.workdir, given=given, steps=steps, extend=options.extend)
