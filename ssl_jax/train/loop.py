"""A run: checks, restoring the newest checkpoint, and the steps.

The order is restore -> (data, step, log, eval, save) -> final report, see `steps`.
"""

import contextlib
from pathlib import Path

import jax

from ssl_jax import config as config_lib
from ssl_jax.config import InputError, Unavailable
from ssl_jax.data.lookup import listed
from ssl_jax.runtime import distributed, lock, sharding, stop
from ssl_jax.runtime.stop import EXIT_PREEMPTED, Stop
from ssl_jax.train import disk, extension, log, memory, resume, trackers
from ssl_jax.train.console import Console
from ssl_jax.train.evaluation import Evaluation
from ssl_jax.train.setup import Run, fresh_state, open_loader
from ssl_jax.train.steps import EXIT_DONE, Steps
from ssl_jax.views import resident

_SEEN_WITHIN = 60  # seconds, after which other machines see a file on a shared disk


def train(run: Run, workdir: str | Path, evaluation: Evaluation) -> int:
    """Trains to the end of the plan, resuming the run in `workdir` if there is one. Returns an exit
    code (EXIT_DONE or EXIT_PREEMPTED).

    Raises:
      InputError: an unusable data set, checkpoint or disk; these checks precede any write.
    """
    with stop.listening() as signals, Console(run) as console, contextlib.ExitStack() as cleanup:
        signals.leaving += [console.restore, cleanup.close]
        try:
            return _train(run, config_lib.absolute(workdir), evaluation, console, signals, cleanup)
        except stop.Interrupted:
            if jax.process_count() > 1:
                raise  # the other processes may continue: see distributed.together
            return EXIT_PREEMPTED


def _train(
    run: Run,
    workdir: Path,
    evaluation: Evaluation,
    console: Console,
    signals: Stop,
    cleanup: contextlib.ExitStack,
) -> int:
    """cleanup: takes the release of the run directory's lock; the caller closes it in any case."""
    if jax.process_count() > 1:
        signals.busy()  # a signal waits for the first step, at which all stop
    _check(run, workdir, evaluation, console)
    existed = distributed.gather_json(workdir.is_dir())[0]
    if existed:
        _lock(workdir, console, cleanup)
    with console.phase("reading the newest checkpoint"):
        saved = resume.open_checkpoints(workdir, run, create=False)
        if not saved or saved.latest() is None:
            log.check_new(workdir)
        distributed.agree({"newest checkpoint": saved and saved.latest(), "workdir": str(workdir)})
        current, record = resume.restore(saved, run, console) if saved else (None, 0)
    begin, total = 0 if current is None else int(current.step), run.config.run.total_steps
    source = _resident(run, console) if _on_devices(run) and begin < total else None
    batches = open_loader(run, record, source)
    try:
        # Unreadable data and unsuitable weights of init_from fail here, before a folder is created.
        with console.phase("reading the first batch"):
            batch = next(batches) if begin < total else None
        with console.phase("initialising the network"):
            current = current or fresh_state(run)
        if not saved:
            parent = next(place for place in (workdir, *workdir.parents) if place.exists())
            disk.check_space(parent, run.abstract, copies=run.config.checkpoint.keep + 1)
        workdir.mkdir(parents=True, exist_ok=True)
        if not existed:
            _lock(workdir, console, cleanup)
        saved = saved or resume.open_checkpoints(workdir, run, create=True)
        assert saved is not None
        finished = begin == total and extension.is_reported(workdir, run.config)
        _announce(workdir, run, begin, console)
        if begin < total:
            _record_run(workdir, run, begin, console)
        if all(distributed.gather_json(finished)):
            console.say("this run is complete, and its report is written")
            console.close(workdir, bool(evaluation.tasks))
            return EXIT_DONE
        if begin in resume.former_ends(run) and distributed.is_first():
            extension.set_aside(workdir, begin)
        with disk.full_disk_named(workdir):
            steps = Steps(run, workdir, saved, current, evaluation, console, signals, source)
            code = steps.run(batches, batch)
            # Until here, the scores that are there belong to the config that is there.
            if begin == total and code == EXIT_DONE and distributed.is_first():
                log.write_json(workdir / "config.json", run.config.to_dict())
            return code
    finally:
        signals.finish()
        batches.close()


def _check(run: Run, workdir: Path, evaluation: Evaluation, console: Console) -> None:
    """Raises what can be known to fail before the run directory is locked."""
    trackers.check(run.config, workdir)
    images = resident.needed(run.source) if _on_devices(run) else 0
    memory.check(run.abstract, jax.local_devices(), images)
    with console.phase("checking that all processes agree"):
        distributed.agree(_facts(run))
    with console.phase("opening the evaluation data"):
        evaluation.open()  # so that a wrong folder fails before the training


def _on_devices(run: Run) -> bool:
    return run.config.data.cache == "device"


def _resident(run: Run, console: Console):
    """The images in the memory of each device."""
    with console.phase("decoding the images for the devices"):
        return resident.load(run.source, sharding.replicated(run.mesh), run.config.data.workers)


def _facts(run: Run) -> dict:
    """The values that must be equal in all processes of a run."""
    values = config_lib.flatten(run.config)
    images = {"number of images": len(run.source), "names of images": run.source.names_digest()}
    facts = {**images, "code of ssl_jax": log.code()}
    return values | log.versions() | resume.flags() | facts


def _lock(workdir: Path, console: Console, cleanup: contextlib.ExitStack) -> None:
    """Process 0 locks the run directory for all processes. Raises InputError in every process if
    another run holds the lock, or a process does not see it."""
    refused, silent = "", False
    if distributed.is_first():
        try:
            with disk.full_disk_named(workdir), console.phase("waiting for the run directory"):
                taken = lock.Lock(workdir, console.say)
                cleanup.callback(taken.release)  # registered first: a signal may come at any time
                taken.take()
        except InputError as error:
            refused, silent = str(error), isinstance(error, Unavailable)
    refused, silent = distributed.gather_json([refused, silent])[0]
    if refused:
        raise (Unavailable if silent else InputError)(refused)
    if blind := distributed.unseen_by(workdir / lock.FILE, _SEEN_WITHIN):
        raise InputError(
            f"--workdir={workdir}: {listed([f'process {i}' for i in blind], 5)} cannot see what"
            " process 0 wrote there; it must be a folder that all processes share"
        )


def _record_run(workdir: Path, run: Run, start: int, console: Console) -> None:
    """Writes the config, and what trains from step `start` on."""
    if not distributed.is_first():
        return
    log.write_json(workdir / "config.json", run.config.to_dict())
    earlier = log.note_session(workdir, start)
    if earlier is not None and earlier.get("code", log.code()) != log.code():
        console.say(
            f"the code of ssl_jax has changed since this run was started at step {earlier['step']}"
            " (see sessions.jsonl)"
        )


def _announce(workdir: Path, run: Run, start: int, console: Console) -> None:
    if not distributed.is_first():
        return
    c = run.config
    devices = jax.devices()
    console.say(
        f"{c.method} on {len(devices)} x {devices[0].device_kind}, batch {c.optim.batch_size},"
        f" steps {start} to {c.run.total_steps} ({c.run.steps_per_epoch} per epoch)"
    )
    if frozen := c.optim.backbone_freeze_epochs:
        console.say(
            f"the backbone is frozen for the first {frozen:g} of {c.run.epochs:.4g} epochs"
            " (optim.backbone_freeze_epochs)"
        )
    if c.model.dtype == "bfloat16" and devices[0].platform == "cpu":
        console.say("a CPU emulates bfloat16; model.dtype=float32 takes about 75 % of the time")
    classes = f", {run.source.num_classes} classes" if run.source.num_classes else ""
    console.say(f"data: {run.source}, {len(run.source)} images{classes}")
    if run.source.left_out:
        console.say(f"skipped: {run.source.left_out}")
    console.say(f"run directory: {workdir}")
