"""The one training loop: restore -> (data, step, log, eval, save) in this fixed order -> final
report.
"""

import collections
import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.evals.registry import BASELINES, TRAINED
from ssl_jax.runtime import distributed, lock, sharding, stop
from ssl_jax.runtime.stop import EXIT_PREEMPTED, Stop
from ssl_jax.train import (
    checkpoint,
    disk,
    extension,
    guards,
    health,
    log,
    memory,
    profile,
    resume,
    span,
    state,
    step,
    trackers,
)
from ssl_jax.train.console import Console
from ssl_jax.train.evaluation import Evaluation, Scores
from ssl_jax.train.setup import Run, fresh_state, open_loader, shardings
from ssl_jax.views import loader, resident

EXIT_DONE = 0


def train(run: Run, workdir: str | Path, evaluation: Evaluation) -> int:
    """Trains to the end of the plan, continuing whatever `workdir` holds. Returns an exit code
    (EXIT_DONE or EXIT_PREEMPTED).

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
    trackers.check(run.config, workdir)
    on_devices = run.config.data.cache == "device"
    images = resident.needed(run.source) if on_devices else 0
    memory.check(run.abstract, jax.local_devices(), images)
    with console.phase("checking that all processes agree"):
        distributed.agree(_facts(run))
    with console.phase("opening the evaluation data"):
        evaluation.open()  # a wrong folder shows here, not after the training
    existed = distributed.told(workdir.is_dir())[0]
    if existed:
        _lock(workdir, console, held)
    with console.phase("reading the newest checkpoint"):
        saved = resume.open_checkpoints(workdir, run, create=False)
        if not saved or saved.latest() is None:
            log.check_new(workdir)
        distributed.agree({"newest checkpoint": saved and saved.latest(), "workdir": str(workdir)})
        current, record = resume.restore(saved, run, console) if saved else (None, 0)
    begin, total = 0 if current is None else int(current.step), run.config.run.total_steps
    source = None
    if on_devices and begin < total:
        with console.phase("decoding the images for the devices"):
            place = sharding.replicated(run.mesh)
            source = resident.load(run.source, place, run.config.data.workers)
    batches = open_loader(run, record, source)
    try:
        # Unreadable data shows here, before a folder is made, and so do weights of init_from that
        # do not fit.
        with console.phase("reading the first batch"):
            batch = next(batches) if begin < total else None
        with console.phase("initialising the network"):
            current = current or fresh_state(run)
        if not saved:
            there = next(place for place in (workdir, *workdir.parents) if place.exists())
            disk.check_space(there, run.abstract, copies=run.config.checkpoint.keep + 1)
        workdir.mkdir(parents=True, exist_ok=True)
        if not existed:
            _lock(workdir, console, held)
        saved = saved or resume.open_checkpoints(workdir, run, create=True)
        assert saved is not None
        finished = begin == total and extension.is_reported(workdir, run.config)
        _record_run(workdir, run, begin, console)
        if all(distributed.told(finished)):
            console.say("this run is complete, and its report is written")
            console.close(workdir, bool(evaluation.tasks))
            return EXIT_DONE
        if begin in resume.former_ends(run) and distributed.is_first():
            extension.set_aside(workdir, begin)
        with disk.full_disk_named(workdir):
            steps = _Steps(run, workdir, saved, current, evaluation, console, asked, source)
            return steps.run(batches, batch)
    finally:
        asked.over()
        batches.close()


def _facts(run: Run) -> dict:
    """What all processes of a run must have in common."""
    values = config_lib.flatten(run.config)
    known = {"number of images": len(run.source), "code of ssl_jax": log.code()}
    return values | log.versions() | resume.flags() | known


def _lock(workdir: Path, console: Console, held: contextlib.ExitStack) -> None:
    """Of several processes, the first one takes the lock of the run folder for all. Raises
    InputError in all where it is taken."""
    refused = ""
    if distributed.is_first():
        try:
            with disk.full_disk_named(workdir), console.phase("waiting for the run directory"):
                taken = lock.Lock(workdir, console.say)
                held.callback(taken.release)  # first: a signal may come at any time
                taken.take()
        except InputError as error:
            refused = str(error)
    if refused := "".join(distributed.told(refused)):
        raise InputError(refused)


def _record_run(workdir: Path, run: Run, start: int, console: Console) -> None:
    if not distributed.is_first():
        return
    log.write_json(workdir / "config.json", run.config.to_dict())
    log.write_json(workdir / "environment.json", log.environment())
    c = run.config
    devices = jax.devices()
    console.say(
        f"{c.method} on {len(devices)} x {devices[0].device_kind}, batch {c.optim.batch_size},"
        f" steps {start} to {c.run.total_steps} ({c.run.steps_per_epoch} per epoch)"
    )
    if c.model.dtype == "bfloat16" and devices[0].platform == "cpu":
        console.say("a CPU emulates bfloat16; model.dtype=float32 takes about .75 of the time")
    classes = f", {run.source.num_classes} classes" if run.source.num_classes else ""
    console.say(f"data: {run.source}, {len(run.source)} images{classes}")
    if run.source.left_out:
        console.say(f"skipped: {run.source.left_out}")
    console.say(f"run directory: {workdir}")


class _Steps:
    """The steps of a run from a state on, and all that is written of them."""

    def __init__(
        self,
        run: Run,
        workdir: Path,
        saved: checkpoint.Checkpoints,
        current: state.TrainState,
        evaluation: Evaluation,
        console: Console,
        asked: Stop,
        source: resident.Resident | None,
    ):
        """source: of images that the devices keep, None where batches bring theirs."""
        self._run, self._config, self._workdir = run, run.config, workdir
        self._saved, self._current, self._evaluation = saved, current, evaluation
        self._console, self._asked = console, asked
        self._at, self._total = int(current.step), run.config.run.total_steps
        self._rows = log.Table(workdir, "metrics", restored_step=self._at or None)
        self._scores = log.Table(workdir, "evals", restored_step=self._at or None)
        tables = {"metrics": self._rows, "evals": self._scores}
        self._tracked = trackers.Trackers(workdir, run.config, self._at, tables)
        self._monitor = health.Monitor(run.method)
        self._guard = guards.NonFinite(run.config.max_nonfinite)
        self._unreadable = guards.Unreadable(workdir, run.source)
        self._profiler = profile.Profiler(
            run.traced if distributed.is_first() else None, workdir / "profile"
        )
        self._eval_every = run.config.evals.every_steps if evaluation.tasks else 0
        self._images = None if source is None else source.images
        every = (run.config.log, run.config.checkpoint, run.config.evals)
        self._most = 1 if source is None else run.config.log.every_steps
        self._length = span.Length(self._most, self._total, [one.every_steps for one in every])
        # Steps the device may still be busy with, at most two spans of them: the last one of a
        # span, how many they are, and their metrics.
        self._in_flight: collections.deque[tuple[int, int, dict]] = collections.deque()
        self._refused: InputError | None = None  # what the data ended the run with

    def run(self, batches: loader.Loader, batch: dict | None) -> int:
        """To the end of the plan and the report, or to a signal; returns an exit code."""
        console, asked, total = self._console, self._asked, self._total
        with contextlib.closing(self._tracked), contextlib.closing(self._profiler):
            if self._at < total:
                assert batch is not None
                train_step = self._compiled([asked.tell(batch)])
                # At the start, and of a run that was stopped during this evaluation.
                missing = self._is_due(self._eval_every) and self._scores.newest < self._at
                if distributed.told(missing)[0]:
                    self._evaluate()
            console.begin(self._at)
            asked.busy()
            read = [] if batch is None else [batch]
            while self._at < total:
                self._step(train_step, [asked.tell(one) for one in read])
                read = self._next(batches)
                self._log()
                if self._is_due(self._eval_every) and self._at < total and self._refused is None:
                    self._evaluate_unless_told()
                if (
                    self._at == total
                    or asked.agreed
                    or self._is_due(self._config.checkpoint.every_steps)
                ):
                    with console.phase(f"saving step {self._at}") as took:
                        self._save()
                    console.saved(self._at, took)
                if asked.agreed and self._at < total:
                    return self._leave()
            with console.phase("saving the last checkpoint"):
                self._save(whole=True)
            asked.told = any(distributed.told(asked.told))  # all make the report, or none
            asked.idle()
            self._report()
        console.close(self._workdir, bool(self._evaluation.tasks))
        return EXIT_DONE

    def _compiled(self, batches: list[dict]) -> jax.stages.Compiled:
        """A span of steps as a program for arrays like these. It is traced and compiled once."""
        run, console = self._run, self._console
        function = step.make_step(run.method, run.optimizer, run.config)
        if self._images is not None:
            function = span.spanned(function, self._most)
        train_step = step.compile_step(function, run.mesh, shardings(run))
        console.say("compiling the step ...")
        with console.phase("compiling the step", compiling=True) as took:
            program = train_step.lower(self._current, *self._put(batches)).compile()
        console.say(f"compiled in {took.seconds:.0f} s")
        return program

    def _put(self, batches: list[dict]) -> tuple:
        """What a span of steps takes beside the state."""
        mesh = self._run.mesh
        if self._images is None:
            return (sharding.put_batch(batches[0], mesh),)
        count = jax.device_put(np.int32(len(batches)), sharding.replicated(mesh))
        put = sharding.put_batch(span.stacked(batches, self._most), mesh, axis=1)
        return put, count, self._images

    def _step(self, train_step: jax.stages.Compiled, batches: list[dict]) -> None:
        self._console.now(f"step {self._at + 1}")
        self._profiler.before(self._at + 1)
        self._current, metrics = train_step(self._current, *self._put(batches))
        self._at += len(batches)
        if costs := self._profiler.after(self._at, metrics, train_step.as_text):
            self._console.say(costs)
        for batch in batches:
            self._unreadable.note(batch)
        self._in_flight.append((self._at, len(batches), metrics))

    def _next(self, batches: loader.Loader) -> list[dict]:
        """The batches of the next span; fewer where the run ends before them: at its end, at a
        signal to the only process, since images may never come, and where the data are refused."""
        console, asked = self._console, self._asked
        console.now(f"reading the batch of step {self._at + 1}")
        read: list[dict] = []

        def work():
            count = self._length.after(self._at)
            if self._most > 1:  # clocks differ
                count = distributed.told(count)[0]
            for _ in range(count):
                read.append(console.waiting(lambda: next(batches)))

        try:
            if self._at < self._total and jax.process_count() == 1:
                asked.unless_told(work, "saving after this step")
            elif self._at < self._total:
                work()
        except InputError as error:
            self._refuse(error)
        if jax.process_count() == 1:
            asked.agreed |= asked.told  # nobody else to be told
        return read

    def _refuse(self, error: InputError) -> None:
        """The run ends after this step."""
        if jax.process_count() > 1:
            raise error  # a save takes all processes, and the others go on
        self._refused, self._asked.agreed = error, True

    def _log(self) -> None:
        """Looks at the results of steps, and at that of the last one where something needs it."""
        config, asked = self._config, self._asked
        self._console.now(f"the result of step {self._in_flight[0][0]}")
        # Whether something after this step looks at its result, so that none may stay in flight.
        every = (config.evals.every_steps, config.checkpoint.every_steps)
        due = self._at == self._total or any(map(self._is_due, every))
        while self._in_flight and (len(self._in_flight) > 1 or due or asked.agreed):
            end, count, metrics = self._in_flight.popleft()
            for done, one in self._apart(end, count, metrics):
                asked.hear(one)
                self._guard.check(done, one)
                self._console.finished(done, one)
                if done % config.log.every_steps == 0 or done == self._total:
                    row = {"step": done, **log.scalars(one), **self._console.timing(done)}
                    self._rows.write(row)
                    self._tracked.write("metrics", row)
                    self._console.show(row, self._monitor(row))

    def _apart(self, end: int, count: int, metrics: dict) -> list[tuple[int, dict]]:
        """(step, its metrics) of a span that ends with step `end`."""
        if self._images is None:
            return [(end, metrics)]
        metrics = jax.device_get(metrics)  # waits for them
        self._length.ended(self._console.training(), count)
        rows = [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(count)]
        return list(zip(range(end - count + 1, end + 1), rows, strict=True))

    def _is_due(self, every: int) -> bool:
        """Whether what is done every so many steps (0 = never) comes after this one."""
        return bool(every) and self._at % every == 0

    def _evaluate_unless_told(self) -> None:
        if jax.process_count() > 1:
            self._evaluate()
            return
        try:
            leaves = f"leaving the evaluation, saving step {self._at}"
            self._asked.unless_told(self._evaluate, leaves)
        except InputError as error:  # an image is broken since the evaluation before
            self._refuse(error)

    def _evaluate(self) -> None:
        at, console, pictures = self._at, self._console, self._config.log.tracked_pictures
        with console.phase(f"evaluating at step {at}") as took:
            scores = self._evaluation(*self._network(), drawn=pictures)
            self._score(scores)
            if pictures and distributed.is_first():
                folder = self._workdir / "pictures"
                drawn = self._evaluation.draw(*self._network(), folder, self._workdir)
                self._tracked.pictures(at, drawn)
        console.evaluated(at, took)
        found = "  ".join(f"{k} {v:.4g}" for k, v in scores.items())
        console.say(f"eval at step {at}: {found}  ({took.seconds:.1f} s)")

    def _score(self, scores: Scores) -> None:
        row = {"step": self._at, **scores}
        self._scores.write(row)
        self._tracked.write("evals", row)

    def _network(self) -> tuple[Any, Any]:
        """Weights and constants to evaluate, on this process."""
        return distributed.local((state.weights(self._current), self._current.constants))

    def _save(self, **how: bool) -> None:
        self._saved.save(self._current, resume.meta(self._config, self._at), **how)

    def _leave(self) -> int:
        """Saves the step at which a signal or the data end the run. Raises what the data did."""
        with self._console.phase(f"saving step {self._at}"):
            self._save(whole=True)
        where = f"saved step {self._at} in {self._saved.folder}"
        if self._refused is not None:
            self._console.say(where)
            raise self._refused
        self._console.say(
            f"{where}; run the same command again to resume (exit code {EXIT_PREEMPTED})"
        )
        return EXIT_PREEMPTED

    def _report(self) -> None:
        """The comparison with baselines: in results.json and results.txt, as pictures, in trackers,
        and its last row among the scores of the run."""
        evaluation = self._evaluation
        if not evaluation.tasks:
            return
        also = f", compared with {' and '.join(BASELINES)}" if self._config.evals.baselines else ""
        self._console.say(f"final report: {', '.join(evaluation.tasks)}{also}")
        with self._console.phase("final report"):
            network = self._network()
            results = evaluation.compare(*network)
            self._score(results[TRAINED])
            drawn = evaluation.publish(results, *network, self._workdir)
            self._tracked.final(self._total, results, drawn)
