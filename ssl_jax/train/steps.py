"""Runs the steps of a run, each with its log, evaluation and save, and writes the final report."""

import collections
import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.registry import BASELINES, TRAINED
from ssl_jax.methods import frozen
from ssl_jax.runtime import distributed, sharding
from ssl_jax.runtime.stop import EXIT_PREEMPTED, Stop
from ssl_jax.train import (
    best,
    checkpoint,
    guards,
    health,
    log,
    profile,
    resume,
    span,
    state,
    step,
    trackers,
)
from ssl_jax.train.console import Console
from ssl_jax.train.evaluation import Evaluation, Scores
from ssl_jax.train.setup import Run, shardings
from ssl_jax.views import loader, resident

EXIT_DONE = 0


class Steps:
    """Runs a run's steps from a state on. A step is computed, logged, evaluated and saved in this
    order, each when due.
    """

    def __init__(
        self,
        run: Run,
        workdir: Path,
        saved: checkpoint.Checkpoints,
        current: state.TrainState,
        evaluation: Evaluation,
        console: Console,
        signals: Stop,
        source: resident.Resident | None,
    ):
        """source: the images cached on the devices; None if batches contain their images."""
        self._run, self._config, self._workdir = run, run.config, workdir
        self._saved, self._current, self._evaluation = saved, current, evaluation
        self._names = run.source.names_digest()
        self._console, self._signals = console, signals
        self._at, self._total = int(current.step), run.config.run.total_steps
        self._rows = log.Table(workdir, "metrics", restored_step=self._at or None)
        self._scores = log.Table(workdir, "evals", restored_step=self._at or None)
        tables = {"metrics": self._rows, "evals": self._scores}
        self._tracked = trackers.Trackers(workdir, run.config, self._at, tables)
        self._best = best.Best(workdir, run.config)
        self._monitor = health.Monitor(run.method)
        self._guard = guards.NonFinite(run.config.max_nonfinite)
        self._unreadable = guards.Unreadable(workdir, run.source)
        self._profiler = profile.Profiler(
            run.traced if distributed.is_first() else None, workdir / "profile"
        )
        self._eval_every = run.config.evals.every_steps if evaluation.tasks else 0
        self._images = None if source is None else source.images
        # At most two spans that may still be running: last step, number of steps, metrics.
        self._in_flight: collections.deque[tuple[int, int, dict]] = collections.deque()
        self._refused: InputError | None = None  # the data error that ends the run

    def run(self, batches: loader.Loader, batch: dict | None) -> int:
        """Runs to the end of the plan and writes the report, or stops at a signal; returns an exit
        code."""
        console, signals, total = self._console, self._signals, self._total
        with contextlib.closing(self._tracked), contextlib.closing(self._profiler):
            if self._at < total:
                assert batch is not None
                train_step = self._compiled([signals.mark(batch)])
                # At step 0, and in a resumed run that was stopped during this evaluation.
                missing = self._is_due(self._eval_every) and self._scores.newest < self._at
                if distributed.gather_json(missing)[0]:
                    self._evaluate()
            console.begin(self._at)
            signals.busy()
            read = [] if batch is None else [batch]
            while self._at < total:
                self._step(train_step, [signals.mark(one) for one in read])
                read = self._next(batches)
                self._log()
                if self._is_due(self._eval_every) and self._at < total and self._refused is None:
                    self._evaluate_interruptibly()
                if (
                    self._at == total
                    or signals.agreed
                    or self._is_due(self._config.checkpoint.every_steps)
                ):
                    with console.phase(f"saving step {self._at}") as took:
                        self._save()
                    console.saved(self._at, took)
                if signals.agreed and self._at < total:
                    return self._leave()
            with console.phase("saving the last checkpoint"):
                self._save(whole=True)
            # Either all processes write the report or none.
            signals.received = any(distributed.gather_json(signals.received))
            signals.idle()
            self._report()
        console.close(self._workdir, bool(self._evaluation.tasks))
        return EXIT_DONE

    def _compiled(self, batches: list[dict]) -> jax.stages.Compiled:
        """Compiles the program of a span of steps for batches of these shapes."""
        run, console, c = self._run, self._console, self._run.config
        self._most = 1
        if self._images is not None:
            self._most = span.most_steps(batches[0], min(c.log.every_steps, self._total))
        looked_at = [one.every_steps for one in (c.log, c.checkpoint, c.evals)]
        self._length = span.Length(self._most, self._total, looked_at)
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
        """The arguments of a span's program besides the state."""
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
        """The batches of the next span. It may be incomplete at the end of the run, at a data
        error, and at a signal to a single process (which must not wait for a hanging reader)."""
        console, signals = self._console, self._signals
        console.now(f"reading the batch of step {self._at + 1}")
        read: list[dict] = []

        def work():
            count = self._length.after(self._at)
            if self._most > 1:  # the processes' clocks differ
                count = distributed.gather_json(count)[0]
            for _ in range(count):
                read.append(console.waiting(lambda: next(batches)))

        try:
            if self._at < self._total and jax.process_count() == 1:
                signals.run_interruptible(work, "saving after this step")
            elif self._at < self._total:
                work()
        except InputError as error:
            self._refuse(error)
        if jax.process_count() == 1:
            signals.agreed |= signals.received  # no other process to inform
        return read

    def _refuse(self, error: InputError) -> None:
        """Ends the run after this step."""
        if jax.process_count() > 1:
            raise error  # a save needs all processes, and the others continue
        self._refused, self._signals.agreed = error, True

    def _log(self) -> None:
        """Processes the metrics of finished spans, and those of the latest if they are needed."""
        config, signals = self._config, self._signals
        self._console.now(f"the result of step {self._in_flight[0][0]}")
        # An evaluation, a save or the end needs the result of this step.
        every = (config.evals.every_steps, config.checkpoint.every_steps)
        due = self._at == self._total or any(map(self._is_due, every))
        while self._in_flight and (len(self._in_flight) > 1 or due or signals.agreed):
            end, count, metrics = self._in_flight.popleft()
            for done, scalars in self._apart(end, count, metrics):
                signals.read_mark(scalars)
                self._guard.check(done, scalars)
                self._console.finished(done, scalars)
                if done % config.log.every_steps == 0 or done == self._total:
                    row = {"step": done, **log.scalars(scalars), **self._console.timing(done)}
                    self._rows.write(row)
                    self._tracked.write("metrics", row)
                    self._console.show(row, self._monitor(row))

    def _apart(self, end: int, count: int, metrics: dict) -> list[tuple[int, dict]]:
        """[(step, its metrics)] of a span that ends with step `end`."""
        if self._images is None:
            return [(end, metrics)]
        metrics = jax.device_get(metrics)  # waits for them
        self._length.ended(self._console.training(), count)
        rows = [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(count)]
        return list(zip(range(end - count + 1, end + 1), rows, strict=True))

    def _is_due(self, every: int) -> bool:
        """Whether an action with this period (0 = never) is due after the current step."""
        return bool(every) and self._at % every == 0

    def _evaluate_interruptibly(self) -> None:
        if jax.process_count() > 1:
            self._evaluate()
            return
        try:
            leaves = f"leaving the evaluation, saving step {self._at}"
            self._signals.run_interruptible(self._evaluate, leaves)
        except InputError as error:  # an image became unreadable since the last evaluation
            self._refuse(error)

    def _evaluate(self) -> None:
        at, console, pictures = self._at, self._console, self._config.log.tracked_pictures
        with console.phase(f"evaluating at step {at}") as took:
            network = self._network()  # which all processes gather
            scores = self._evaluation(*network, draw_next=pictures)
            self._score(scores)
            if pictures and distributed.is_first():
                folder = self._workdir / "pictures"
                drawn = self._evaluation.draw(*network, folder, self._workdir)
                self._tracked.pictures(at, drawn)
        console.evaluated(at, took)
        text = "  ".join(f"{k} {v:.4g}" for k, v in scores.items())
        console.say(f"eval at step {at}: {text}  ({took.seconds:.1f} s)")

    def _score(self, scores: Scores) -> None:
        row = {"step": self._at, **scores}
        self._scores.write(row)
        self._tracked.write("evals", row)
        if text := self._best.note(self._at, scores, self._network):
            self._console.say(text)

    def _network(self) -> tuple[Any, Any]:
        """Weights and constants to evaluate, in this process's memory."""
        weights = state.weights(self._current, self._config.model)
        return distributed.local((weights, frozen.of_network(self._current.constants)))

    def _save(self, **how: bool) -> None:
        self._saved.save(self._current, resume.meta(self._config, self._at, self._names), **how)

    def _leave(self) -> int:
        """Saves the step at which a signal or a data error ends the run; raises the data error."""
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
        """Writes the comparison with baselines to results.json, results.txt, pictures and trackers,
        and adds the final scores to the evals table."""
        evaluation = self._evaluation
        if not evaluation.tasks:
            return
        also = f", compared with {' and '.join(BASELINES)}" if self._config.evals.baselines else ""
        self._console.say(f"final report: {', '.join(evaluation.tasks)}{also}")
        with self._console.phase("final report"):
            network = self._network()
            results = evaluation.compare(*network)
            self._score(results[TRAINED])
            results = self._best.added(results)
            drawn = evaluation.publish(results, *network, self._workdir)
            self._tracked.final(self._total, results, drawn)
