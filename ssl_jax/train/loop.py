"""The one training loop: restore -> (data, step, log, eval, save) in this fixed order -> final
report.
"""

import collections
import contextlib
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import methods
from ssl_jax.config import InputError
from ssl_jax.data import loader
from ssl_jax.evals.registry import BASELINES, TRAINED
from ssl_jax.evals.report import Evaluation
from ssl_jax.ops import numerics
from ssl_jax.train import (
    checkpoint,
    distributed,
    extension,
    guards,
    health,
    lock,
    log,
    memory,
    optim,
    profile,
    schedule,
    sharding,
    start,
    state,
    step,
    stop,
    trackers,
)
from ssl_jax.train.console import Console
from ssl_jax.train.stop import EXIT_PREEMPTED, Stop
from ssl_jax.train.trackers import Trackers

EXIT_DONE = 0


class Run(NamedTuple):
    """Everything a run is made of, before anything is allocated or written."""

    config: ConfigDict  # resolved
    method: methods.Method
    source: Any
    mesh: jax.sharding.Mesh
    optimizer: optim.Optimizer
    constants: Any  # of the method, as read from files
    keys: dict  # {dotted key: config.Key}, how each is declared
    abstract: state.TrainState  # ShapeDtypeStructs with shardings
    traced: profile.Steps | None = None  # steps whose operations are timed


def plan(config: ConfigDict, source: Any, keys: dict) -> Run:
    """Works out shapes and shardings of a resolved config; no array of the state is allocated.

    source: of the training images (see data.source). keys: as declared, see settings.keys.
    Raises InputError for a source without the labels that the method learns from.
    """
    method = methods.make(config)
    loader.check_labels(source, method.views)
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp)
    optimizer, abstract = on_mesh(method, config, mesh)
    return Run(config, method, source, mesh, optimizer, method.constants(), keys, abstract)


def on_mesh(
    method: methods.Method, config: ConfigDict, mesh: jax.sharding.Mesh
) -> tuple[optim.Optimizer, state.TrainState]:
    """The optimizer, and the state as ShapeDtypeStructs with shardings on a mesh, which need not be
    of this machine. No file is read."""
    params = jax.eval_shape(lambda: method.init(numerics.key(0))[0])
    optimizer = optim.make(config.optim, method.rules, params)
    constants = methods.shapes_of_constants(method)
    shapes = jax.eval_shape(lambda c: state.create(method, optimizer, 0, c), constants)
    places = sharding.state_shardings(mesh, shapes, method.placement)
    return optimizer, checkpoint.abstract(shapes, places)


def fresh_state(run: Run) -> state.TrainState:
    """A new state made directly in its shardings (the same bits on any mesh), with the weights of
    `init_from` if there are any."""
    shardings = jax.tree.map(lambda x: x.sharding, run.abstract)
    create = jax.jit(
        lambda constants: state.create(run.method, run.optimizer, run.config.seed, constants),
        out_shardings=shardings,
    )
    return start.start_from(
        run.config, create(run.constants), evaluated=run.method.starts_evaluated
    )


def train(run: Run, workdir: str | Path, evaluation: Evaluation) -> int:
    """Trains to the end of the plan, continuing whatever `workdir` holds. Returns an exit code
    (EXIT_DONE or EXIT_PREEMPTED).

    evaluation: with `tasks` (none: nothing is evaluated), `open()`, a call (params, constants) ->
    {score: number}, and `compare`, `publish` and `draw`; see evals.report.

    Raises InputError for a data set, checkpoint or disk that cannot work; nothing is written before
    those checks.
    """
    with stop.listening() as asked, Console(run) as console, contextlib.ExitStack() as held:
        asked.leaving += [console.restore, held.close]
        try:
            return _train(run, config_lib.absolute(workdir), evaluation, console, asked, held)
        except stop.Interrupted:
            if jax.process_count() > 1:
                raise  # the others may go on: see distributed.together
            return EXIT_PREEMPTED


def _train(
    run: Run,
    workdir: Path,
    evaluation: Evaluation,
    console: Console,
    asked: Stop,
    held: contextlib.ExitStack,
) -> int:
    """held: is closed at the end, however it comes, with the lock of the run folder in it."""
    if jax.process_count() > 1:
        asked.busy()  # a signal waits for the first step, at which all stop
    trackers.check(run.config)
    memory.check(run.abstract, jax.local_devices())
    with console.phase("asking whether all processes agree"):
        distributed.agree(_facts(run))
    with console.phase("opening the images of the evaluations"):
        evaluation.open()  # a wrong folder shows here, not after the training
    existed = distributed.told(workdir.is_dir())[0]
    if existed:
        _lock(workdir, console, held)
    with console.phase("reading the newest checkpoint"):
        saved = _open_checkpoints(workdir, run, create=False)
        if not saved or saved.latest() is None:
            log.check_new(workdir)
        distributed.agree({"newest checkpoint": saved and saved.latest(), "workdir": str(workdir)})
        current, record = _restore(saved, run, console) if saved else (None, 0)
    begin = 0 if current is None else int(current.step)
    batches = open_loader(run, record)
    try:
        # Unreadable data shows here, before a folder is made, and so do weights of init_from that
        # do not fit.
        with console.phase("reading the first batch"):
            batch = next(batches) if begin < run.config.run.total_steps else None
        with console.phase("making the network"):
            current = current or fresh_state(run)
        if not saved:
            checkpoint.check_space(
                _existing_parent(workdir), run.abstract, copies=run.config.checkpoint.keep + 1
            )
        workdir.mkdir(parents=True, exist_ok=True)
        if not existed:
            _lock(workdir, console, held)
        saved = saved or _open_checkpoints(workdir, run, create=True)
        finished = begin == run.config.run.total_steps and extension.is_reported(
            workdir, run.config
        )
        _record_run(workdir, run, begin, console)
        if all(distributed.told(finished)):
            console.say("the run has reached its end, and its report is written")
            console.close(workdir, bool(evaluation.tasks))
            return EXIT_DONE
        if begin in _former_ends(run) and distributed.is_first():
            extension.set_aside(workdir, begin)
        with checkpoint.full_disk_named(workdir):
            return _loop(run, workdir, saved, current, batches, batch, evaluation, console, asked)
    finally:
        asked.over()
        batches.close()


def _lock(workdir: Path, console: Console, held: contextlib.ExitStack) -> None:
    """Of several processes, the first one takes the lock of the run folder for all. Raises
    InputError in all where it is taken."""
    refused = ""
    if distributed.is_first():
        try:
            with checkpoint.full_disk_named(workdir), console.phase("waiting for the run folder"):
                taken = lock.Lock(workdir, console.say)
                held.callback(taken.release)  # first: a signal may come at any time
                taken.take()
        except InputError as error:
            refused = str(error)
    if refused := "".join(distributed.told(refused)):
        raise InputError(refused)


def _loop(
    run: Run,
    workdir: Path,
    saved: checkpoint.Checkpoints,
    current: state.TrainState,
    batches: loader.Loader,
    batch: dict | None,
    evaluation: Evaluation,
    console: Console,
    asked: Stop,
) -> int:
    config, total = run.config, run.config.run.total_steps
    at = int(current.step)
    rows = log.Table(workdir, "metrics", restored_step=at or None)
    scores = log.Table(workdir, "evals", restored_step=at or None)
    tracked = Trackers(workdir, config, at, {"metrics": rows, "evals": scores})
    monitor = health.Monitor(run.method)
    guard = guards.NonFinite(config.max_nonfinite)
    unreadable = guards.Unreadable(workdir, run.source)
    eval_every = config.evals.every_steps if evaluation.tasks else 0

    def evaluate(at):
        with console.phase(f"evaluating at step {at}") as took:
            row = {"step": at, **evaluation(*_network(current), drawn=config.log.tracked_pictures)}
            scores.write(row)
            tracked.write("evals", row)
            if config.log.tracked_pictures and distributed.is_first():
                drawn = evaluation.draw(*_network(current), workdir / "pictures", workdir)
                tracked.pictures(at, drawn)
        console.evaluated(at, took)
        found = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "step")
        console.say(f"eval at step {at}: {found}  ({took.seconds:.1f} s)")

    traced = run.traced if distributed.is_first() else None
    profiler = profile.Profiler(traced, workdir / "profile")
    with contextlib.closing(tracked), contextlib.closing(profiler):
        if at < total:
            assert batch is not None
            train_step = _compiled(run, current, asked.tell(batch), console)
            # At the start, and of a run that was stopped during this evaluation.
            missing = eval_every and at % eval_every == 0 and scores.newest < at
            if distributed.told(bool(missing))[0]:
                evaluate(at)
        console.begin(at)
        asked.busy()
        # Metrics of steps the device may still be busy with: at most two.
        in_flight: collections.deque[tuple[int, dict]] = collections.deque()
        refused: InputError | None = None  # what the data ended the run with
        while at < total:
            console.now(f"step {at + 1}")
            assert batch is not None
            batch = asked.tell(batch)
            profiler.before(at + 1)
            current, metrics = train_step(current, sharding.put_batch(batch, run.mesh))
            at += 1
            if costs := profiler.after(at, metrics, train_step.as_text):
                console.say(costs)
            unreadable.note(batch)
            in_flight.append((at, metrics))
            console.now(f"reading the batch of step {at + 1}")
            batch = None
            try:
                if at < total:
                    batch = _read(batches, asked, console)
            except InputError as error:
                if jax.process_count() > 1:
                    raise  # a save takes all processes, and the others go on
                refused, asked.agreed = error, True
            if jax.process_count() == 1:
                asked.agreed |= asked.told  # nobody else to be told
            console.now(f"the result of step {in_flight[0][0]}")
            while in_flight and (
                len(in_flight) > 1 or at == total or asked.agreed or _due(at, config)
            ):
                done, metrics = in_flight.popleft()
                asked.hear(metrics)
                guard.check(done, metrics)
                console.finished(done, metrics)
                if done % config.log.every_steps == 0 or done == total:
                    row = {"step": done, **log.scalars(metrics), **console.timing(done)}
                    rows.write(row)
                    tracked.write("metrics", row)
                    console.show(row, monitor(row))
            if eval_every and at % eval_every == 0 and at < total and refused is None:
                if jax.process_count() > 1:
                    evaluate(at)
                else:
                    try:
                        leaves = f"leaving the evaluation, saving step {at}"
                        asked.unless_told(functools.partial(evaluate, at), leaves)
                    except InputError as error:  # an image is broken since the evaluation before
                        refused, asked.agreed = error, True
            if at == total or asked.agreed or at % config.checkpoint.every_steps == 0:
                with console.phase(f"saving step {at}") as took:
                    saved.save(current, meta(config, at))
                console.saved(at, took)
            if asked.agreed and at < total:
                with console.phase(f"saving step {at}"):
                    saved.save(current, meta(config, at), whole=True)
                if refused is not None:
                    console.say(f"saved step {at} in {saved.folder}")
                    raise refused
                console.say(
                    f"signal received: saved step {at} in {saved.folder}; the same command"
                    f" continues (exit code {EXIT_PREEMPTED})"
                )
                return EXIT_PREEMPTED
        with console.phase("the last save"):
            saved.save(current, meta(config, at), whole=True)
        asked.told = any(distributed.told(asked.told))  # all make the report, or none
        asked.idle()
        _report(run, workdir, current, evaluation, scores, tracked, console)
    console.close(workdir, bool(evaluation.tasks))
    return EXIT_DONE


def _read(batches: loader.Loader, asked: Stop, console: Console) -> dict | None:
    """The next batch; None where a signal comes first, of one process: images may never come."""
    read: list[dict] = []

    def work():
        read.append(console.waiting(lambda: next(batches)))

    if jax.process_count() == 1:
        asked.unless_told(work, "saving after this step")
    else:
        work()
    return read[0] if read else None


def _compiled(
    run: Run, current: state.TrainState, batch: dict, console: Console
) -> jax.stages.Compiled:
    """The step as a program for arrays like these. It is traced and compiled once."""
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config),
        run.mesh,
        jax.tree.map(lambda x: x.sharding, run.abstract),
    )
    console.say("compiling the step ...")
    with console.phase("compiling the step", compiling=True) as took:
        program = train_step.lower(current, sharding.put_batch(batch, run.mesh)).compile()
    console.say(f"compiled in {took.seconds:.0f} s")
    return program


def _report(
    run: Run,
    workdir: Path,
    current: state.TrainState,
    evaluation: Evaluation,
    scores: log.Table,
    tracked: Trackers,
    console: Console,
) -> None:
    """The comparison with baselines: in results.json and results.txt, as pictures, in trackers, and
    its last row among the scores of the run."""
    if not evaluation.tasks:
        return
    network, total = _network(current), run.config.run.total_steps
    beside = f", beside {' and '.join(BASELINES)}" if run.config.evals.baselines else ""
    console.say(f"final report: {', '.join(evaluation.tasks)}{beside}")
    with console.phase("final report"):
        results = evaluation.compare(*network)
        row = {"step": total, **results[TRAINED]}
        scores.write(row)
        tracked.write("evals", row)
        tracked.final(total, results, evaluation.publish(results, *network, workdir))


def _network(current) -> tuple[Any, Any]:
    """Weights and constants to evaluate, on this process."""
    return distributed.local((state.weights(current), current.constants))


def _facts(run: Run) -> dict:
    """What all processes of a run must have in common."""
    values = config_lib.flatten(run.config)
    known = {"number of images": len(run.source), "code of ssl_jax": log.code()}
    return values | log.versions() | _flags() | known


def _due(at: int, config) -> bool:
    """Whether something after this step looks at its result, so that no step may stay in flight."""
    every = (config.evals.every_steps, config.checkpoint.every_steps)
    return any(e and at % e == 0 for e in every)


def open_loader(run: Run, record: int = 0) -> loader.Loader:
    """Batches of the run from a record on."""
    c = run.config
    return loader.Loader(
        run.source,
        run.method.views,
        batch_size=c.optim.batch_size,
        seed=c.seed,
        workers=c.data.workers,
        crop_on=c.data.crop_on,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        start_record=record,
        total_records=c.run.total_steps * c.optim.batch_size,
        max_unreadable=c.data.max_unreadable,
    )


def _open_checkpoints(workdir: Path, run: Run, *, create: bool):
    folder = workdir / "checkpoints"
    if not create and not folder.exists():
        return None
    c = run.config.checkpoint
    return checkpoint.Checkpoints(
        folder, keep=c.keep, keep_every=c.keep_every, kept=_former_ends(run)
    )


def _former_ends(run: Run) -> tuple[int, ...]:
    """Steps at which the run ended before it was lengthened."""
    return schedule.ends(run.config.optim, run.config.run.steps_per_epoch)[:-1]


def _restore(saved, run: Run, console: Console):
    """The newest intact checkpoint, after checking that it belongs to this config, and its data
    position; (None, 0) if there is none. Damaged ones are moved out of the way.

    Raises InputError where all are damaged.
    """
    while (newest := saved.latest()) is not None:
        try:
            return _restored(saved, newest, run, console)
        except checkpoint.Damaged as error:
            console.say(f"{error}; it is kept as {saved.set_aside(newest)}")
            if jax.process_count() > 1:
                # Others may have read what they needed of it, and must not go on with it.
                console.say("the same command continues from the one before")
                raise stop.Interrupted from error
    if (damaged := checkpoint.aside(saved.folder)).is_dir():
        raise InputError(
            f"{saved.folder.parent} has no intact checkpoint to continue from, the damaged ones are"
            f" in {damaged}: put an intact copy into {saved.folder}, or begin anew in another"
            " --workdir"
        )
    return None, 0


def _restored(saved, newest, run, console):
    meta = saved.meta(newest)
    stored = config_lib.from_json(meta["config"])
    longer = extension.lengthened(stored, run.config)
    differing = config_lib.compare_for_resume(longer, run.config, run.keys)
    if differing:
        raise InputError(
            f"{saved.folder.parent} holds a run with other settings: {'; '.join(differing)}. Use"
            " those, or another --workdir"
        )
    for name, now in _flags().items():
        if (before := meta.get("flags", {}).get(name, now)) != now:
            raise InputError(
                f"{saved.folder.parent} holds a run with {name}={before:d}, and here it is {now:d},"
                f" which gives other numbers; continue with {name}={before:d}"
            )
    current = saved.restore(newest, run.abstract)
    console.say(f"continuing from step {newest} ({saved.folder / str(newest)})")
    if longer is not stored:
        before, after = stored.run.total_steps, run.config.run.total_steps
        console.say(
            f"lengthened from {before} to {after} steps: from step {before} on, learning rate,"
            " weight decay and teacher momentum take their cosines anew, without a warm-up"
        )
    return current, meta["record"]


def _flags() -> dict[str, bool]:
    """JAX's settings under which the same keys and types give other numbers."""
    names = "JAX_THREEFRY_PARTITIONABLE", "JAX_ENABLE_X64"
    return {name: bool(getattr(jax.config, name.lower())) for name in names}


def meta(config: ConfigDict, at: int) -> dict:
    """What a checkpoint holds beside the state: config, data position, versions."""
    return {
        "flags": _flags(),
        "config": config_lib.to_json(config),
        "record": at * config.optim.batch_size,
        "versions": log.versions(),
    }


def _record_run(workdir: Path, run: Run, start: int, console: Console) -> None:
    if not distributed.is_first():
        return
    log.write_json(workdir / "config.json", run.config.to_dict())
    log.write_json(workdir / "environment.json", log.environment())
    c = run.config
    devices = jax.devices()
    console.say(
        f"{c.method} on {len(devices)} x {devices[0].device_kind} ({devices[0].platform}),"
        f" {run.source!r}: {len(run.source)} images, batch {c.optim.batch_size}, steps {start} to"
        f" {c.run.total_steps} ({c.run.steps_per_epoch} an epoch); run folder {workdir}"
    )
    if left_out := getattr(run.source, "left_out", ""):
        console.say(f"left out: {left_out}")


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
