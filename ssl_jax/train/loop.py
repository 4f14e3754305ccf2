"""The one training loop: restore -> (data, step, log, eval, save) in this fixed order -> final
report.
"""

import collections
import contextlib
import functools
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import methods
from ssl_jax.config import InputError
from ssl_jax.data import loader
from ssl_jax.evals.report import Evaluation
from ssl_jax.train import checkpoint, distributed, health, log, optim, sharding, start, state, step

EXIT_DONE = 0
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: saved after a signal; the same command continues

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


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
    params = jax.eval_shape(lambda: method.init(jax.random.key(0))[0])
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
    {score: number}, and `report(params, constants, workdir)` for the end.

    Raises InputError for a data set, checkpoint or disk that cannot work; nothing is written before
    those checks.
    """
    workdir = Path(workdir).absolute()
    log.check_trackers(run.config)
    distributed.agree(_facts(run))
    evaluation.open()  # a wrong folder shows here, not after the training
    saved = _open_checkpoints(workdir, run, create=False)
    distributed.agree({"newest checkpoint": saved and saved.latest(), "workdir": str(workdir)})
    current, record = _restore(saved, run) if saved else (None, 0)
    begin = 0 if current is None else int(current.step)
    batches = open_loader(run, record)
    try:
        # Unreadable data shows here, before a folder is made, and so do weights of init_from that
        # do not fit.
        batch = next(batches) if begin < run.config.run.total_steps else None
        current = current or fresh_state(run)
        if not saved:
            checkpoint.check_space(
                _existing_parent(workdir), run.abstract, copies=run.config.checkpoint.keep + 1
            )
        workdir.mkdir(parents=True, exist_ok=True)
        saved = saved or _open_checkpoints(workdir, run, create=True)
        _record_run(workdir, run, begin)
        with checkpoint.full_disk_named(workdir):
            return _loop(run, workdir, saved, current, batches, batch, evaluation)
    finally:
        batches.close()


def _loop(run: Run, workdir: Path, saved, current, batches, batch, evaluation) -> int:
    config, total = run.config, run.config.run.total_steps
    at = int(current.step)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, config),
        run.mesh,
        jax.tree.map(lambda x: x.sharding, run.abstract),
    )
    rows = log.Table(workdir, "metrics", restored_step=at or None)
    scores = log.Table(workdir, "evals", restored_step=at or None)
    console = _Console(run, at)
    trackers = log.Trackers(workdir, config)
    monitor = health.Monitor(run.method)
    guard = _NonFinite(config.max_nonfinite)
    unreadable = _Unreadable(workdir, run.source)

    with _stop_signals() as stop, distributed.watched(config.log.silent_seconds) as watchdog:
        eval_every = config.evals.every_steps if evaluation.tasks else 0
        if at == 0 and eval_every and batch is not None:
            _evaluate(evaluation, current, scores, trackers, at)
        # Metrics of steps the device may still be busy with: at most two.
        in_flight: collections.deque[tuple[int, dict]] = collections.deque()
        while at < total:
            watchdog.phase(f"step {at + 1}")
            batch = stop.tell(batch)
            current, metrics = train_step(current, sharding.put_batch(batch, run.mesh))
            at += 1
            unreadable.note(batch)
            in_flight.append((at, metrics))
            watchdog.phase(f"reading the batch of step {at + 1}")
            batch = console.waiting(lambda: next(batches)) if at < total else None
            watchdog.phase(f"the result of step {in_flight[0][0]}")
            while in_flight and (
                len(in_flight) > 1 or at == total or stop.agreed or _due(at, config)
            ):
                done, metrics = in_flight.popleft()
                stop.hear(metrics)
                guard.check(done, metrics)
                if done % config.log.every_steps == 0 or done == total:
                    row = {"step": done, **log.scalars(metrics), **console.timing(done)}
                    rows.write(row)
                    trackers.write(row)
                    console.show(row, monitor(row))
            if eval_every and at % eval_every == 0 and at < total:
                watchdog.phase(f"evaluation at step {at}")
                _evaluate(evaluation, current, scores, trackers, at)
            if at == total or stop.agreed or at % config.checkpoint.every_steps == 0:
                watchdog.phase(f"saving step {at}")
                saved.save(current, meta(config, at))
            if stop.agreed and at < total:
                saved.wait()
                if distributed.is_first():
                    print(
                        f"signal received: saved step {at} in {saved.folder}; the same command"
                        f" continues (exit code {EXIT_PREEMPTED})"
                    )
                return EXIT_PREEMPTED
    with distributed.watched(config.log.silent_seconds) as watchdog:
        watchdog.phase("the last save and evaluation")
        saved.wait()
        evaluation.report(*_network(current), workdir)
    return EXIT_DONE


def _network(current) -> tuple:
    """Weights and constants to evaluate, on this process."""
    return distributed.local((state.weights(current), current.constants))


def _facts(run: Run) -> dict:
    """What all processes of a run must have in common."""
    values = config_lib.flatten(run.config)
    return values | log.versions() | {"number of images": len(run.source)}


def _due(at: int, config) -> bool:
    """Whether something after this step looks at its result, so that no step may stay in flight."""
    every = (config.evals.every_steps, config.checkpoint.every_steps)
    return any(e and at % e == 0 for e in every)


def _evaluate(evaluation, current, scores, trackers, at: int) -> None:
    row = {"step": at, **evaluation(*_network(current))}
    scores.write(row)
    trackers.write(row)
    if not distributed.is_first():
        return
    print(
        f"eval at step {at}: " + "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "step"),
        flush=True,
    )


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
    if not create and not folder.is_dir():
        return None
    return checkpoint.Checkpoints(
        folder, keep=run.config.checkpoint.keep, keep_every=run.config.checkpoint.keep_every
    )


def _restore(saved, run: Run):
    """The newest complete checkpoint, after checking that it belongs to this config; (None, 0) if
    there is none.
    """
    newest = saved.latest()
    if newest is None:
        return None, 0
    meta = saved.meta(newest)
    differing = config_lib.compare_for_resume(
        config_lib.from_json(meta["config"]), run.config, run.keys
    )
    if differing:
        raise InputError(
            f"{saved.folder.parent} holds a run with other settings: {'; '.join(differing)}. Use"
            " those, or another --workdir"
        )
    current = saved.restore(newest, run.abstract)
    if distributed.is_first():
        print(f"continuing from step {newest} ({saved.folder / str(newest)})", flush=True)
    return current, meta["record"]


def meta(config: ConfigDict, at: int) -> dict:
    """What a checkpoint holds beside the state: config, data position, versions."""
    return {
        "config": config_lib.to_json(config),
        "record": at * config.optim.batch_size,
        "versions": log.versions(),
    }


def _record_run(workdir: Path, run: Run, start: int) -> None:
    if not distributed.is_first():
        return
    (workdir / "config.json").write_text(config_lib.to_json(run.config))
    log.write_json(workdir / "environment.json", log.environment())
    c = run.config
    devices = jax.devices()
    print(
        f"{c.method} on {len(devices)} x {devices[0].device_kind} ({devices[0].platform}),"
        f" {run.source!r}: {len(run.source)} images, batch {c.optim.batch_size}, steps {start} to"
        f" {c.run.total_steps} ({c.run.steps_per_epoch} an epoch); run folder {workdir}",
        flush=True,
    )


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


class _Console:
    """Measures speed and input wait between log rows and prints the progress line."""

    def __init__(self, run: Run, start: int):
        self._total, self._batch = run.config.run.total_steps, run.config.optim.batch_size
        self._run = run
        self._devices = run.mesh.devices.flatten()
        self._began = self._since = time.perf_counter()
        self._last, self._waited, self._rate = start, 0.0, 0.0

    def waiting(self, fetch):
        """Runs `fetch` and books its time as waiting for input."""
        began = time.perf_counter()
        result = fetch()
        self._waited += time.perf_counter() - began
        return result

    def timing(self, done: int) -> dict:
        """Clock columns since the last row (the first row after a start also holds the compile
        time).
        """
        now = time.perf_counter()
        seconds, waited = now - self._since, self._waited
        self._rate = self._batch * (done - self._last) / seconds
        self._since, self._waited, self._last = now, 0.0, done
        return {
            "images_per_second": self._rate,
            "data_wait": waited / seconds,
            "mfu": self._mfu(),
            "memory_mib": log.memory_mib(),
            "seconds": now - self._began,
        }

    def _mfu(self) -> float | None:
        """Share of the devices' peak that the model's FLOPs take; None where that is not known."""
        peak = log.peak_flops(self._devices)
        return None if peak is None else self._rate * self._flops / peak

    @functools.cached_property
    def _flops(self) -> float:
        return step.flops_per_image(self._run.config, self._run.abstract)

    def show(self, row: dict, warnings: list[str]) -> None:
        if jax.process_index() == 0:
            left = (self._total - row["step"]) * self._batch / self._rate
            print(log.progress_line(row, self._total, left), flush=True)
            for text in warnings:
                print(f"  warning: {text}", flush=True)


class _NonFinite:
    """Counts steps in a row whose loss or gradient was not finite; gives up after `limit`
    of them.
    """

    def __init__(self, limit: int):
        self._limit, self._row = limit, 0

    def check(self, done: int, metrics) -> None:
        if bool(metrics["finite"]):
            self._row = 0
            return
        self._row += 1
        print(
            f"  warning: step {done} had a non-finite loss or gradient and was left out"
            f" ({int(metrics['nonfinite'])} so far)",
            flush=True,
        )
        if self._limit and self._row >= self._limit:
            raise InputError(
                f"{self._row} steps in a row (the last: {done}) had a non-finite loss or gradient:"
                " look at the images (NaN?), lower optim.lr, or raise max_nonfinite; the last"
                " checkpoint is intact"
            )


class _Unreadable:
    """Lists records whose image could not be read (the next readable one took their place) in
    unreadable.txt.
    """

    def __init__(self, workdir: Path, records):
        self._path, self._records = workdir / "unreadable.txt", records
        self._known = set(self._path.read_text().splitlines()) if self._path.exists() else set()

    def note(self, batch) -> None:
        for index in np.asarray(batch["index"])[np.asarray(batch["replaced"])]:
            name = self._records.name(int(index))
            if name not in self._known:
                self._known.add(name)
                # A short line at once: processes append to one file without mixing theirs.
                with open(self._path, "a") as f:
                    f.write(name + "\n")
                print(
                    f"  warning: cannot read {name}; the next readable image takes its place (list:"
                    f" {self._path})",
                    flush=True,
                )


class _Stop:
    """Whether to stop at the next boundary of steps.

    All processes must stop at the same one, and one process must not change its mind on the way. So
    who was told to stop marks its part of the next batch, and the metrics of that step, which every
    process reads at the same point of the loop, say so to all: nobody waits for an answer.
    """

    def __init__(self):
        self.told = self.agreed = False

    def tell(self, batch: dict) -> dict:
        """The batch with this process's answer."""
        return {**batch, "stop": np.full(len(batch["index"]), self.told)}

    def hear(self, metrics: dict) -> None:
        self.agreed |= bool(metrics.pop("stop"))


@contextlib.contextmanager
def _stop_signals():
    """Turns SIGTERM, SIGINT and SIGUSR1 into a request to save at the next step boundary; a second
    SIGINT stops at once.
    """
    stop = _Stop()

    def handle(number, frame):
        if stop.told and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.told = True

    previous = {s: signal.signal(s, handle) for s in _SIGNALS}
    try:
        yield stop
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)
