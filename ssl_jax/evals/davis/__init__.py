"""Video object segmentation without training: the objects of the first frame are tracked by the
similarity of patch features (DAVIS 2017 with DINO's protocol; SOP table 4, FLSL table 4).

The source has videos with masks: `s.sequences`, {name: range of records in order of time}, and in
the masks the object's number for each pixel (0 = background, 255 = ignore). `test_examples` limits
the number of frames but keeps videos whole, see `frames.first`. The training part is not used.
"""

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.davis.settings import PROTOCOLS, Settings
from ssl_jax.evals.pictures import tracking
from ssl_jax.evals.registry import register_module
from ssl_jax.features import derived, frames, windows
from ssl_jax.methods.pictures.base import Animation, Picture
from ssl_jax.runtime import distributed
from ssl_jax.scores import propagation, video
from ssl_jax.scores.propagation import Propagation

__all__ = ["PROTOCOLS", "Settings", "figures", "score"]
_SHOWN = 3  # videos in the pictures


def _followed(
    case: Case, settings: Settings, name: str, records: range
) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted masks [T, H, W] uint8 of one video; the first one is given."""
    stream = frames.encoded(
        case.network,
        case.test,
        records,
        name=name,
        short=settings.short_side,
        multiple=settings.multiple,
        patch=case.patch,
        batch_size=settings.frames,
    )
    options = {name: getattr(settings, name) for name in Propagation._fields}
    return propagation.follow(stream, Propagation(**options))


def _videos(case: Case) -> list[tuple[str, range]]:
    """(name, records) of the videos that are scored."""
    return list(frames.first(case.videos(), case.config.test_examples).items())


def score(case: Case, settings: Settings) -> dict[str, float]:
    """In percent: `davis`, the mean of J and F; `davis_j`, `davis_f`, means over all objects, each
    the mean over its frames without the first and the last; `davis_j_recall`, `davis_f_recall`, the
    shares of frames above one half.
    """
    videos, shown = _videos(case), case.extracted.setdefault(case.key_of("davis"), {})
    rows: list[video.Measured] = []
    for number in distributed.share(np.arange(len(videos)), case.shared):
        name, records = videos[number]
        truth, predicted = _followed(case, settings, name, records)
        if len(shown) < _SHOWN:
            shown[name] = records, truth, predicted
        try:
            rows.extend(video.measure(truth, predicted))
        except ValueError as error:
            raise InputError(f"cannot score the video {name}: {error}") from error
    (values,) = derived.gather_rows([np.asarray(rows, np.float64)], case.shared)
    means = dict(zip(video.Measured._fields, values.mean(axis=0)))
    scores = {f"davis_{name}": 100.0 * float(x) for name, x in means.items()}
    return {"davis": (scores["davis_j"] + scores["davis_f"]) / 2, **scores}


def figures(case: Case, settings: Settings) -> dict[str, Picture | Animation]:
    """{"tracking": frames of the first videos with the tracked objects, "tracking_NAME": an
    animation of each video}."""
    shown = case.extracted.get(case.key_of("davis"))
    if not shown:
        videos = _videos(case)[:_SHOWN]
        shown = {name: (r, *_followed(case, settings, name, r)) for name, r in videos}
    return tracking.draw(
        (name, [windows.unit(case.test[i]["image"]) for i in records], *masks)
        for name, (records, *masks) in shown.items()
    )


register_module(__name__, heading="J&F", needs="sequences")
