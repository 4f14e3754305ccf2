"""Evaluation of frozen features: k-NN, linear probe, dense retrieval. Accuracies and mIoU are in
percent.

    encoder = ssl_jax.load("runs/a")
    evals.evaluate(encoder, encoder.config, tasks=("knn", "dense"))  # {"knn": 81.2, ...}

A task turns the features of a training and a test set into a flat dict of numbers; a new task is
one module and one line in TASKS. Figures are in `evals.visualise` (imports matplotlib, so it is not
imported here).
"""

from collections.abc import Callable
from typing import NamedTuple

from ssl_jax import config as config_lib
from ssl_jax.config import InputError, free_on_resume, key, with_defaults
from ssl_jax.data import source as source_lib
from ssl_jax.data.source import Prepared, make_source
from ssl_jax.evals import dense_retrieval, features, knn, linear, rank
from ssl_jax.evals.features import ROWS, Extracted, extract, raw_pixels, subset

_CACHE_BYTES = 2**30  # of decoded images per source


class Task(NamedTuple):
    """What a task needs and how it is run."""

    # data section of `config.eval`: "image" (labels, image features) or "dense" (masks, patch
    # features)
    section: str
    run: Callable  # (train: Extracted, test: Extracted, config) -> {metric: float}


TASKS: dict[str, Task] = {
    "knn": Task("image", knn.evaluate),
    "linear": Task("image", linear.evaluate),
    "dense": Task("dense", dense_retrieval.evaluate),
    "rank": Task("image", rank.evaluate),
}
COLUMNS = {
    "knn": "k-NN",
    "linear": "linear",
    "dense": "dense mIoU",
}  # metric -> heading of the comparison table


def defaults() -> dict:
    """The section `eval` of the config."""
    part = key("test", "part of the set that is scored")
    data = source_lib.defaults() | dict(test_split=part)
    return free_on_resume(
        dict(
            every_steps=key(0, "steps between two evaluations; 0 = only at the end", least=0),
            tasks=key(
                ("knn", "linear", "dense"),
                '"knn" and "linear" need labels, "dense" needs masks',
                choices=tuple(TASKS),
            ),
            # knn and linear need a set with labels. `split` is the training part.
            image=with_defaults(data, {"kind": "digits"}),
            # Images with masks. `split` is the memory.
            dense=data,
            train_examples=key(0, "use so many of the training part; 0 = all", "images", least=0),
            test_examples=key(0, "the same of the test part", "images", least=0),
            batch_size=key(64, "per forward pass", "images", above=0, most=2**20),
            crop=key(
                0,
                "square centre crop; 0 = none. Images are always cut to a multiple of the patch",
                "pixels",
                least=0,
                most=16384,
            ),
            **knn.defaults(),
            **linear.defaults(),
            **dense_retrieval.defaults(),
        )
    )


def check(config) -> None:
    """Refuses tasks whose data lack what they need. Raises InputError."""
    e = config.eval
    if {"knn", "linear", "rank"} & set(e.tasks):
        source_lib.check("eval.image", e.image, folder(config, e.image))
    if {"knn", "linear"} & set(e.tasks) and e.image.kind == "digit_scenes":
        raise InputError(
            'eval.image.kind is "digit_scenes", which has no image labels; knn and linear need'
            ' them: use "digits"'
        )
    if "dense" in e.tasks:
        if e.dense.kind in ("digits", "folder"):
            raise InputError(
                f'eval.dense.kind is "{e.dense.kind}", which has no masks; the task "dense" needs'
                ' them: use "digit_scenes", a TFDS set with masks, or leave dense out of'
                " eval.tasks"
            )
        source_lib.check("eval.dense", e.dense, folder(config, e.dense))
    for name in ("knn_k", "linear_lrs"):
        if not e[name]:
            raise InputError(f"eval.{name} is empty; give at least one number")


def folder(config, section) -> str:
    """Where a data section of `eval` finds its images: with no `dir` of its own, where training
    does if the kind agrees.
    """
    return section.dir or (config.data.dir if section.kind == config.data.kind else "")


def check_tasks(tasks) -> tuple[str, ...]:
    """`tasks` as a tuple. Raises InputError naming the nearest task if one does not exist."""
    for name in tasks:
        if name not in TASKS:
            raise InputError(config_lib.unknown("eval task", name, TASKS))
    return tuple(tasks)


def sources(config, *, tasks=None) -> dict:
    """{section: (train source, test source)} of what the tasks need; make them once to evaluate
    several networks.
    """
    sections = {
        TASKS[name].section: None
        for name in check_tasks(config.eval.tasks if tasks is None else tasks)
    }
    made = {}
    for section in sections:
        data = config.eval[section]
        counts = config.eval.train_examples, config.eval.test_examples
        made[section] = tuple(
            _cached(make_source(data, split=s), n)
            for s, n in zip((data.split, data.test_split), counts)
        )
    return made


def _cached(source, examples: int):
    """`source`, with decoded records kept in RAM if they fit: several networks are scored
    on them.
    """
    if source.size is None:
        return source
    count = min(len(source), examples or len(source))
    return (
        Prepared(source, cache=True)
        if 3 * count * source.size[0] * source.size[1] <= _CACHE_BYTES
        else source
    )


def evaluate(
    features_fn, config, *, tasks=None, sources_of=None, extracted=None
) -> dict[str, float]:
    """Runs tasks on frozen features; each image is encoded once however many tasks use it.

    Args:
      features_fn: images [B, H, W, 3] in [0, 1] -> Features: a `methods.encoder.Encoder`, or
        `raw_pixels`.
      config: `eval.tasks`, `eval.image` and `eval.dense` (data sections with `split` and
        `test_split`), `eval.train_examples` and `eval.test_examples` (0: all; otherwise a draw from
        `seed`), `eval.batch_size`, `eval.crop`, and the keys of the tasks.
      tasks: names from TASKS; default `config.eval.tasks`.
      sources_of: result of `sources`; made here if None.
      extracted: a dict that is filled with {section: (train, test) features}, for figures made from
        the same features.

    Returns:
      Flat dict of metrics in the order of the tasks; percent, except learning rates.
    """
    tasks = check_tasks(config.eval.tasks if tasks is None else tasks)
    sources_of = sources(config, tasks=tasks) if sources_of is None else sources_of
    extracted, metrics = {} if extracted is None else extracted, {}
    for name in tasks:
        task = TASKS[name]
        if task.section not in extracted:
            extracted[task.section] = extract_pair(
                features_fn, sources_of[task.section], config, patches=task.section == "dense"
            )
        metrics.update(task.run(*extracted[task.section], config))
    return metrics


def extract_pair(features_fn, pair, config, *, patches=False) -> tuple[Extracted, Extracted]:
    """Features of the (train, test) sources `pair` as the tasks see them: image features, or patch
    features instead.
    """
    c = config.eval
    return tuple(
        extract(
            features_fn,
            source,
            batch_size=c.batch_size,
            indices=subset(len(source), count, config.seed),
            image=not patches,
            patches=patches,
            crop=c.crop,
            multiple=config.model.patch,
        )
        for source, count in zip(pair, (c.train_examples, c.test_examples))
    )


def comparison_table(results: dict, columns: dict | None = None) -> str:
    """Aligned text: one row per network, one column per metric, the best value of each column
    marked with *.

    Args:
      results: {row name: metrics}, e.g. {"untrained network": {...}, "raw pixels": {...},
        "trained": {...}}; a missing metric shows "-".
      columns: {metric: heading}; default: those of COLUMNS that some row has.
    """
    columns = columns or {
        name: title
        for name, title in COLUMNS.items()
        if any(name in row for row in results.values())
    }
    best = {
        name: max((row[name] for row in results.values() if name in row), default=None)
        for name in columns
    }

    def cell(row, name):
        return f"{row[name]:.1f}{'*' if row[name] == best[name] else ' '}" if name in row else "- "

    lines = [["features", *(f"{title} " for title in columns.values())]]
    lines += [[label, *(cell(row, name) for name in columns)] for label, row in results.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    text = [
        "  ".join(
            v.ljust(n) if not i else v.rjust(n) for i, (v, n) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    return "\n".join(
        [
            text[0],
            "-" * (sum(widths) + 2 * len(columns)),
            *text[1:],
            "percent; * = best of the column",
        ]
    )


__all__ = [
    "COLUMNS",
    "ROWS",
    "TASKS",
    "Extracted",
    "Task",
    "check_tasks",
    "comparison_table",
    "dense_retrieval",
    "evaluate",
    "extract",
    "extract_pair",
    "features",
    "knn",
    "linear",
    "raw_pixels",
    "sources",
    "subset",
]
