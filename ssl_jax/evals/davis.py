"""Video object segmentation without training: the objects of the first frame are followed by the
similarity of patch features (DAVIS 2017 in the protocol of DINO; SOP table 4, FLSL table 4).

Works on any source of videos with masks: `s.sequences`, {name: range of records in order of time},
whose masks hold the number of the object of each pixel (0 = background, 255 = ignore). With
`test_examples` whole videos are taken, see `sequences_of`; the training part is not used.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np

from ssl_jax.config import InputError, field
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import tracking
from ssl_jax.evals.pictures.base import Animation, Picture
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import native, tokens, windows
from ssl_jax.features.extract import on_all_devices
from ssl_jax.runtime import distributed
from ssl_jax.scores import video
from ssl_jax.scores.propagation import Propagation, track

_DINO = Propagation()
_SHOWN = 3  # videos in the pictures


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    short_side: int = field(
        0,
        "shorter side to which frames are resized (bilinear), the other keeps the aspect but"
        " for `multiple`; 0 = as stored",
        "pixels",
        least=0,
        most=16384,
    )
    multiple: int = field(
        64, "the longer side of resized frames is cropped to its multiple", "pixels", above=0
    )
    frames: int = field(1, "per forward pass", "images", above=0)
    previous: int = field(
        _DINO.previous, "frames that labels come from, besides the first", "images", above=0
    )
    radius: int = field(
        _DINO.radius,
        "how far away a source may lie, up or down and left or right",
        "patches",
        above=0,
    )
    top: int = field(_DINO.top, "sources that a patch takes its label from", "patches", above=0)
    temperature: float = field(
        _DINO.temperature, "sources weigh exp(cosine / temperature)", least=1e-6
    )


# Frames are resized by cv2's bilinear kernel, as in DINO's script. The script also divides red by a
# standard deviation of .228 instead of .229, which is left out here.
_CHANGES = dict(
    data=dict(kind="davis", split="2017/val", test_split="2017/val"),
    short_side=480,
    multiple=64,
    frames=1,
    previous=7,
    radius=12,
    top=5,
    temperature=0.1,
)
PROTOCOLS = {
    "sop": Protocol("SOP table 4", _CHANGES),
    "sove": Protocol("SOVE table 4", _CHANGES),
    "flsl": Protocol("FLSL table 4", _CHANGES),
}


class _Followed(NamedTuple):
    """One video: where it is in the source, and its masks."""

    name: str
    records: range
    truth: np.ndarray  # [T, H, W] uint8
    predicted: np.ndarray  # likewise


def resized(size: tuple[int, int], *, short: int, multiple: int, patch: int) -> tuple[int, int]:
    """(height, width) at which the network sees frames of `size`.

    The shorter side becomes `short`, the longer one keeps the aspect and is reduced to a multiple
    of `multiple`; then both are reduced to multiples of the patch. short=0: only the latter.
    """
    height, width = size
    if short and height > width:
        height, width = short * height // width // multiple * multiple, short
    elif short:
        height, width = short, short * width // height // multiple * multiple
    return windows.floored((height, width), patch)


def sequences_of(source: Any, frames: int = 0) -> dict[str, range]:
    """{name: records} of the videos to follow: the first ones that have at most `frames` frames
    together, but at least one; 0 = all.

    Raises InputError for a source without videos, or with one of fewer than three frames.
    """
    known = getattr(source, "sequences", None)
    if not known:
        raise InputError(
            f'davis needs videos with masks, {source} has none; use data.kind="moving_shapes" or'
            " a set of videos, or leave it out of evals.tasks"
        )
    result: dict[str, range] = {}
    for name, records in known.items():
        total = sum(map(len, result.values())) + len(records)
        if frames and result and total > frames:
            break
        if len(records) < 3:
            raise InputError(
                f"the video {name} has {len(records)} frames; it needs 3: the first is given"
                " and the last not scored"
            )
        result[name] = records
    return result


def follow(case: Case, name: str, records: range) -> _Followed:
    """The masks of one video, from that of its first frame."""
    c, truth = case.config, []

    def frames() -> Iterator[tuple[int, np.ndarray]]:
        for i in records:
            try:
                record = case.test[i]
            except Unreadable as error:
                raise InputError(f"cannot follow the video {name}: {error}") from error
            if record.get("mask") is None:
                raise InputError(f"{case.test.name(i)} has no mask; davis needs one for each frame")
            truth.append(record["mask"])
            size = resized(
                record["image"].shape[:2], short=c.short_side, multiple=c.multiple, patch=case.patch
            )
            yield i, windows.unit(cv2.resize(record["image"], size[::-1]))

    stream = frames()
    first = next(stream)
    features = native.encoded(
        tokens.reader(on_all_devices(case.encoder), tokens.DENSE),
        (item for part in ((first,), stream) for item in part),
        batch_size=min(c.frames, len(records)),
    )
    settings = Propagation(c.previous, c.radius, c.top, c.temperature)
    masks = track(
        (patches for _, patches in features), truth[0], frame=first[1].shape[:2], settings=settings
    )
    predicted = np.stack(list(masks))
    return _Followed(name, records, np.stack(truth), predicted)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`davis`: mean of J and F in percent; `davis_j`, `davis_f`: means over all objects, each the
    mean over its frames but the first and the last; `davis_j_recall`, `davis_f_recall`: the shares
    of frames above one half.

    Raises InputError for a set without videos.
    """
    videos = list(sequences_of(case.test, case.config.test_examples).items())
    mine = np.arange(len(videos))
    mine = distributed.share(mine) if case.shared else mine
    rows: list[video.Measured] = []
    shown = case.extracted.setdefault(_shown(case), {})
    for number in mine:
        name, records = videos[number]
        followed = follow(case, name, records)
        if len(shown) < _SHOWN:
            shown[name] = followed
        rows.extend(_measured(followed))
    values = np.asarray(rows, np.float64).reshape(-1, 4)
    values = distributed.joined(values) if case.shared else values
    j, j_recall, f, f_recall = (100.0 * float(x) for x in values.mean(axis=0))
    return {
        "davis": (j + f) / 2,
        "davis_j": j,
        "davis_j_recall": j_recall,
        "davis_f": f,
        "davis_f_recall": f_recall,
    }


def _measured(followed: _Followed) -> list[video.Measured]:
    try:
        return video.measure(followed.truth, followed.predicted)
    except ValueError as error:
        raise InputError(f"cannot score the video {followed.name}: {error}") from error


def _shown(case):
    """Where the followed videos of an evaluation wait for `figures`."""
    return "davis", repr(case.test), repr(case.config)


def figures(case: Case, settings: Settings) -> dict[str, Picture | Animation]:
    """{"tracking": frames of the first videos with the objects as followed, "tracking_NAME": each
    as an animation}."""
    shown = case.extracted.get(_shown(case)) or {
        name: follow(case, name, records)
        for name, records in list(sequences_of(case.test, case.config.test_examples).items())[
            :_SHOWN
        ]
    }
    pictures: dict[str, Picture | Animation] = {}
    strips = []
    for name, followed in shown.items():
        images = [windows.unit(case.test[i]["image"]) for i in followed.records]
        strips.append((name, images, followed.truth, followed.predicted))
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
        pictures[f"tracking_{safe}"] = tracking.animation(*strips[-1])
    return {"tracking": tracking.picture(strips), **pictures}


register_module(__name__, heading="J&F", needs="sequences")
