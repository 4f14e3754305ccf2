"""ImageNet-9, the backgrounds challenge (Xiao et al. 2020; SOP and SOVE table 6, with iBOT's
protocol): a linear classifier for ImageNet-1K classifies foregrounds on changed backgrounds.

The classifier is trained on `data`, images of ImageNet-1K, or read from the file `head`. The scored
images are `dir`/VARIANT/val/CLASS/*, resized and cropped as given by `data.size` and `crop`.
"""

import dataclasses

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field, local
from ssl_jax.data.source import make_source
from ssl_jax.evals import linear
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.features.monitored import Monitored
from ssl_jax.models import classifiers
from ssl_jax.scores import probe

ORIGINAL = "original"
VARIANTS = (
    "only_fg",
    "mixed_same",
    "mixed_rand",
    "mixed_next",
    "no_fg",
    "only_bg_b",
    "only_bg_t",
    ORIGINAL,
)


@dataclasses.dataclass(frozen=True)
class Settings(linear.Settings):
    dir: str = field(
        "", "folder of ImageNet-9, which contains VARIANT/val/CLASS", path=True, acts=""
    )
    mapping: str = field(
        "",
        'the benchmark\'s file "in_to_in9.json": {class of ImageNet-1K: class of ImageNet-9, or'
        " -1}",
        path=True,
        acts="",
    )
    head: str = field(
        "",
        "fitted classifier, .npz with kernel [d, c], bias [c], and scale and shift [d] of its"
        ' layer norm if it has one; "" = fit one on data',
        path=True,
        acts="",
    )
    variants: tuple[str, ...] = field(
        VARIANTS, "variants of ImageNet-9 that are scored", choices=VARIANTS
    )


# The classifier is that of SOP's and SOVE's table 1, for ViT-B.
_CHANGES = {**linear.PROTOCOLS["sop_base"].changes, "variants": VARIANTS}
PROTOCOLS = {"sop": Protocol("SOP table 6", _CHANGES), "sove": Protocol("SOVE table 6", _CHANGES)}


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if the evaluation `name` lacks its folder, mapping or classifier."""
    linear.check(name, settings, data)
    if not settings.dir or not local(settings.dir).is_dir():
        raise InputError(f'{name}.dir is "{settings.dir}"; it must be the folder of ImageNet-9')
    _read(settings)


def _read(settings: Settings) -> tuple[np.ndarray, dict[str, np.ndarray] | None]:
    """(mapping, classifier or None)."""
    head = classifiers.read_head(settings.head) if settings.head else None
    return classifiers.read_mapping(settings.mapping), head


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Accuracies in percent: `imagenet9` on the original images; `imagenet9_mixed_rand`, ... on the
    variants; `imagenet9_bg_gap`, Mixed-Same minus Mixed-Rand; `imagenet9_head`, of a classifier
    trained here on the test part of `data`. A predicted class of ImageNet-1K outside of ImageNet-9
    counts as wrong.
    """
    mapping, head = _read(settings)
    data, sources = dict(kind="folder", dir=settings.dir, size=case.config.data.size), {}
    for name in settings.variants:
        sources[name] = Monitored(make_source(data, split=f"{name}/val"))
        if sources[name].num_classes != 1 + mapping.max():
            raise InputError(
                f"{settings.dir}/{name}/val has {sources[name].num_classes or 'no'} class folders,"
                f" but the mapping has {1 + mapping.max()} classes"
            )
    fitted = None
    if head is None:
        fitted = linear.probe(case, settings, len(mapping))
        head = fitted.params
    width, classes = head["kernel"].shape
    if classes != len(mapping):
        raise InputError(f"the classifier has {classes} classes, the mapping {len(mapping)}")
    accuracies = {}
    for name, source in sources.items():
        part = case.features_of(source, None, settings.tokens, settings.layers)
        if part.image.shape[1] != width:
            raise InputError(
                f"the classifier takes {width} features, the network gives {part.image.shape[1]}"
                f' with tokens="{settings.tokens}" and layers={settings.layers}'
            )
        right = mapping[probe.predict(head, part.image)] == part.labels
        accuracies[name] = 100.0 * float(right.mean())
    scores = {"imagenet9": accuracies[ORIGINAL]} if ORIGINAL in accuracies else {}
    scores |= {f"imagenet9_{name}": value for name, value in accuracies.items()}
    if "mixed_same" in accuracies and "mixed_rand" in accuracies:
        scores["imagenet9_bg_gap"] = accuracies["mixed_same"] - accuracies["mixed_rand"]
    return scores | ({} if fitted is None else {"imagenet9_head": 100.0 * fitted.accuracy})


# No raw-pixel baseline: a stored classifier cannot read pixels.
register_module(__name__, heading="ImageNet-9", needs="labels", baselines=BASELINES[:1])
