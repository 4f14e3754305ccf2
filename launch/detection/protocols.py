"""The protocols of launch/detection: detection.toml, with changes."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

from ssl_jax.config import InputError, unknown

PROTOCOLS = tomllib.loads(Path(__file__).with_name("protocols.toml").read_text(encoding="utf-8"))
_CHOICES = dict(
    detector=("mask", "faster"), pyramid=("fpn", "simple"), heads=("plain", "vitdet"),
    optimizer=("adamw", "sgd"), score=("coco", "uavdt"),
)  # fmt: skip
_MAY_BE_ZERO = ("weight_decay", "drop_path", "warmup", "clip", "flip", "blocks", "jitter", "steps")


def protocol(name: str, changes: list[str]) -> SimpleNamespace:
    """The settings of a protocol with changes "KEY=VALUE". Raises InputError for a name, key or
    value that does not exist."""
    if name not in PROTOCOLS:
        raise InputError(unknown("protocol", name, PROTOCOLS))
    p = dict(PROTOCOLS[name])
    for change in changes:
        key, _, text = change.partition("=")
        if key not in p or key == "source":
            raise InputError(unknown("setting", key, p.keys() - {"source"}))
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        value = float(value) if type(value) is int and type(p[key]) is float else value
        if not _fits(key, value, p[key]):
            right = _CHOICES.get(key) or f"as {p[key]} is, and in range"
            raise InputError(f"--set {change}: {key} must be {right}")
        p[key] = value
    del p["source"]
    return SimpleNamespace(**p)


def _fits(key: str, value, old) -> bool:
    """Whether a value may take the place of another one."""
    if type(value) is not type(old) or value not in _CHOICES.get(key, (value,)):
        return False
    if key in _CHOICES or type(value) is bool:
        return True
    entries = value if isinstance(value, list) else [value]
    numbers = all(type(x) in (int, float) and 0 <= x < 1e9 for x in entries)
    counts = {"anchors": (5,), "blocks": (0, 4), "jitter": (0, 2)}.get(key, (len(entries),))
    zero = key in _MAY_BE_ZERO or (bool(entries) and all(entries))
    return numbers and zero and len(entries) in counts
