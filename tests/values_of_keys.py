"""Values that nobody should give to a key of a config, and what becomes of them, counted."""

import dataclasses
import math
import time
from collections.abc import Iterator

import jax
from ml_collections import ConfigDict

from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError
from ssl_jax.train import loop, sharding
from tests import tiny

PATIENCE = 2.0  # seconds of this process
NUMBERS = (-1, 0, 1, 2, 3, 0.5, -0.5, 1e-30, 1e30, -1e30, 10**9, -(10**9), 2**31, 2**63, 10**30)
NO_NUMBERS = (math.nan, math.inf, -math.inf, None, True, "", "a", "-1", "../..", "\0", "ü", {}, b"")
TUPLES = ((), (0,), (1, 0), (0, 1), (-1.0, 2.0), (math.nan, 1.0), ("a", "b"), (1e30, 1e30), ((),))
VALUES = (*NUMBERS, *NO_NUMBERS, *TUPLES)


@dataclasses.dataclass
class Tally:
    keys: int = 0
    values: int = 0
    refused: int = 0
    accepted: int = 0
    others: int = 0  # errors that are no InputError
    hangs: int = 0  # longer than PATIENCE


def subjects(method: str) -> Iterator[tuple[ConfigDict, list[str]]]:
    """Configs and the keys of each that are tried: those of the method's own; for "dino" also the
    general ones, and those of every type of evaluation."""
    config = tiny.config(method)
    known = settings.keys(method)
    if method != "dino":
        yield config, [name for name in known if name.startswith(f"{method}.")]
        return
    # What they name is loaded.
    yield config, [name for name in known if name not in ("method", "imports")]
    for type in evals.TYPES:
        config = tiny.config(method)
        for name in evals.named(config):
            del config.evals[name]
        config.evals.tasks = ()
        config.evals[type] = evals.new(type)
        yield config, [name for name in evals.keys(config) if name.startswith(f"evals.{type}.")]


def changed(config: ConfigDict, name: str, value) -> ConfigDict:
    config = ConfigDict(config.to_dict())
    *path, last = name.split(".")
    section = config
    for part in path:
        section = section[part]
    with section.ignore_type():
        section[last] = value
    return config


def build(config) -> None:
    """Shapes of the training state; nothing is allocated."""
    resolved = settings.resolve(config, num_records=10**6, num_devices=1)
    method = methods.make(resolved)
    _, state = loop.on_mesh(method, resolved, sharding.make_mesh(1, 1))
    assert all(math.prod(x.shape) > 0 for x in jax.tree.leaves(state.params))


def try_all(method, values: int, built: float, chance) -> tuple[Tally, list[str]]:
    """values: of each key, drawn from VALUES. built: share of the accepted ones whose network is
    built. Returns what is wrong too."""
    tally, wrong = Tally(), []
    for config, names in subjects(method):
        for name in names:
            tally.keys += 1
            for value in chance.sample(VALUES, values):
                tally.values += 1
                if bad := attempt(config, name, value, tally, chance.random() < built):
                    wrong.append(f"{method}: {name} = {value!r}: {bad}")
    return tally, wrong


def attempt(config, name, value, tally, built) -> str:
    """What is wrong with what became of a value; counted in the tally."""
    began = time.process_time()
    try:
        other = changed(config, name, value)
        tiny.check(other)
        settings.resolve(other, num_records=10**6, num_devices=1)
        tally.accepted += 1
        taken = time.process_time() - began
        if built and name.startswith((f"{config.method}.", "model.", "optim.")):
            build(other)
    except InputError as error:
        tally.refused += 1
        taken = time.process_time() - began
        if len(str(error).splitlines()) != 1:
            return f"not one line: {error}"
    except Exception as error:
        tally.others += 1
        return f"{type(error).__name__}: {str(error)[:200]}"
    if taken > PATIENCE:
        tally.hangs += 1
        return f"{taken:.1f} s"
    return ""
