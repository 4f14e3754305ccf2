"""Evaluations on the training set: `data.kind="training"`.

The package's configs evaluate on the set they train on. So with `--config.data.kind=folder
--config.data.dir=/my/images` they evaluate on that folder, and run the evaluations whose labels,
masks or boxes it has.
"""

from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.data import decode, kinds, listing, source, subset
from ssl_jax.evals import registry, section
from ssl_jax.evals.section import TRAINING

# Usual names of held-out parts, in the order in which they are tried.
HELD_OUT = ("val", "test")
_KEPT, _SCORED = "[:80%]", "[80%:]"  # slices of a set without such a part


def follow(config: ConfigDict) -> None:
    """Copies the keys of the section `data` into evaluations with data.kind="training", without
    reading files.

    Keys that an evaluation sets itself are kept. If an embedded set lacks labels, masks or boxes
    that an evaluation needs, another embedded set that has them is used. `split` becomes that of
    training unless it is set.
    """
    data = config.data
    for each in _followers(config).values():
        images, needs = each.data, registry.get(each.type).needs
        images.kind = data.kind
        if data.kind in source.EMBEDDED:
            if needs and not source.may_have(data, needs):
                images.kind = section.DEFAULT_KIND[needs]
            continue
        # Keys that say how a set is read; values set by the evaluation take precedence.
        for name in kinds.specific().keys() - {"list"} | {"name", "size"}:
            images[name] = images[name] or data[name]
        if images.max_pixels == decode.MAX_PIXELS:
            images.max_pixels = data.max_pixels
        images.ignore = data.ignore if images.ignore == 255 else images.ignore
        images.split = data.split if images.split == "train" else images.split


def fit_to_data(
    config: ConfigDict, records: Any = None, given: Collection[str] = ()
) -> tuple[ConfigDict, list[str]]:
    """Adapts evaluations with data.kind="training" to the training set: (config, notes to print).

    An evaluation that needs labels, masks or boxes which the set lacks is left out; if no
    evaluation with labels is left, `rank` is added. The scored part is data.test_split or, if the
    set has no such part, the first of HELD_OUT that it has, else the remainder of data.split or a
    fifth of the set.

    Args:
      records: the training set, opened by `data.source.make_source`; None = use only its kind, and
        do not change splits.
      given: keys that the user has set. An evaluation that they request is never left out.

    Raises:
      InputError: the set lacks what a requested evaluation needs, or has no part to score; no
        evaluation has the score that the user chose as `evals.best`.
    """
    config = ConfigDict(config.to_dict())
    chosen, followers = section.selected(config), _followers(config)
    left_out: dict[str, list[str]] = {}  # what the set lacks -> names of evaluations
    for name in (name for name in chosen if name in followers):
        if _carries(config, chosen[name], records):
            continue
        if "evals.tasks" in given or any(key.startswith(f"evals.{name}.data.") for key in given):
            raise section.lacking(name, chosen[name], records or config.data.kind)
        left_out.setdefault(registry.get(chosen[name].type).needs, []).append(name)
    notes = []
    if left_out:
        excluded = [name for names in left_out.values() for name in names]
        tasks = [name for name in chosen if name not in excluded]
        if not any(registry.get(chosen[name].type).needs == "labels" for name in tasks):
            _add_rank(config, like=chosen[(left_out.get("labels") or excluded)[0]])
            tasks += [] if "rank" in tasks else ["rank"]
        config.evals.tasks = tuple(tasks)
        lacks = " and ".join(
            f"no {needs} for {', '.join(names)}" for needs, names in left_out.items()
        )
        notes.append(f"evaluations: {', '.join(tasks)}; {_where(config.data)} has {lacks}")
    followers = _followers(config)
    follow(config)
    if records is not None:
        if (count := len(records.unlabelled)) and section.selected(config):
            notes.append(
                f"evaluations: the {count} images of {_where(config.data)} without a label are not"
                " evaluated; training uses them"
            )
        notes += _choose_parts(config, followers, given)
    section.check(config)
    return config, notes + _check_best(config, given)


def _check_best(config, given) -> list[str]:
    """Clears `evals.best` if no evaluation has that score, and returns a note. Raises InputError if
    it is the user who asks for it."""
    best, tasks = config.evals.best, section.selected(config)
    if not best or not tasks or section.of_score(config, best) is not None:
        return []
    if "evals.best" in given:
        raise InputError(
            f'evals.best is "{best}", which is no score of the evaluations {", ".join(tasks)}; name'
            " one of theirs, or add its evaluation to evals.tasks"
        )
    config.evals.best = ""
    return [f"evaluations: no best network is kept, because {best} is not measured"]


def _followers(config) -> dict:
    """{name: section} of the evaluations with data.kind="training"."""
    named = section.named(config).items()
    return {name: each for name, each in named if each.data.kind == TRAINING}


def _where(data) -> str:
    """The name of the training set in messages."""
    return (data.name if data.kind == "tfds" else data.dir) or data.kind


def _carries(config, each, records) -> bool:
    """Whether the training set has the labels, masks or boxes that an evaluation needs."""
    needs = registry.get(each.type).needs
    if not needs or config.data.kind in source.EMBEDDED:
        return True  # `follow` chooses an embedded set that has them
    if needs in each.data and each.data[needs]:
        return True  # the evaluation's own key says where they are
    return source.may_have(config.data, needs) if records is None else source.has(records, needs)


def _add_rank(config, like) -> None:
    """Adds an evaluation that needs only images, configured like `like`, unless there is one."""
    if "rank" not in section.named(config):
        copied = {name: like[name] for name in ("train_examples", "test_examples", "crop")}
        data = dict(kind=TRAINING, size=like.data.size, test_split=like.data.test_split)
        config.evals.rank = section.new("rank", data=data, **copied)


def _choose_parts(config, followers, given) -> list[str]:
    """Sets the scored part of each follower; returns notes to print."""
    parts, chosen = source.parts(config.data), section.selected(config)
    notes: dict[str, None] = {}
    for name, each in followers.items():
        if f"evals.{name}.data.test_split" in given:
            rest = subset.remainder(each.data.test_split)
            if f"evals.{name}.data.split" not in given and subset.split_name(rest)[0] == (
                each.data.split
            ):
                each.data.split = rest  # else every scored image were also in the training part
            continue
        candidates = (listing.alike(part, parts) for part in (each.data.test_split, *HELD_OUT))
        learned = listing.alike(each.data.split, parts)
        scored = next((part for part in candidates if part and part != learned), None)
        if scored is not None:
            each.data.test_split = scored
            continue
        trained, left = config.data.split, subset.remainder(config.data.split)
        if subset.split_name(trained)[1] and not left:
            if name not in chosen:
                continue
            raise InputError(
                f"evals.{name}.data.test_split: {_where(config.data)} has no part named"
                f" {' or '.join(HELD_OUT)}, and data.split={trained!r} leaves no slice; name the"
                " part to score"
            )
        if f"evals.{name}.data.split" not in given:
            each.data.split = trained if left else trained + _KEPT
        each.data.test_split = left or trained + _SCORED
        remark = "" if left else " (training sees its images, but not their labels)"
        why = f"{_where(config.data)} has no part named {' or '.join(HELD_OUT)}"
        note = f"evaluations: score {each.data.test_split}{remark}, as {why}"
        notes |= {note: None} if name in chosen else {}
    return list(notes)
