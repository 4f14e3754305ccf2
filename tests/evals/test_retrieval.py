"""The evaluation `retrieval`: the benchmark and labelled sets."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.data.folder import Folder
from ssl_jax.evals.case import Case
from ssl_jax.features.pixels import Pixels
from tests.evals import fakes


def _case(source, encoder, patch=4, **changes):
    config = evals.new("retrieval", **changes)
    return Case(encoder, config, None, source, patch=patch, batch_size=2)


def _colors(images):
    """Features: the mean colour, from 0 on."""
    return Pixels(np.asarray(images).mean(axis=(1, 2)), None)


COLORS = dict(red=(200, 20, 20), pink=(200, 120, 120), blue=(20, 20, 200), gray=(99, 99, 99))


@pytest.fixture
def benchmark(tmp_path):
    """Six images in three shades of red, blue and gray; two queries, one with red in one corner."""
    (tmp_path / "jpg").mkdir()
    names = {"r0": "red", "r1": "red", "p0": "pink", "b0": "blue", "b1": "blue", "g0": "gray"}
    for name, color in names.items():
        height = 16 if name != "b1" else 24
        Image.new("RGB", (24, height), COLORS[color]).save(tmp_path / "jpg" / f"{name}.png")
    both = np.full((16, 24, 3), COLORS["blue"], np.uint8)
    both[:8, 12:] = COLORS["red"]
    Image.fromarray(both).save(tmp_path / "jpg" / "q.png")
    content = dict(
        imlist=list(names),
        qimlist=["q", "b0"],
        gnd=[
            dict(bbx=[12.2, -0.4, 24, 8.1], easy=[0], hard=[2], junk=[1]),
            dict(bbx=[0, 0, 24, 16], easy=[], hard=[4], junk=[3]),
        ],
    )
    (tmp_path / "gnd.json").write_text(json.dumps(content))
    return tmp_path


def _run(folder, **changes):
    data = dict(kind="folder", dir=str(folder), split="jpg", test_split="jpg")
    case = _case(Folder(folder, "jpg"), _colors, ground_truth="gnd.json", data=data, **changes)
    return case, evals.TYPES["retrieval"].run(case)


def test_benchmark(benchmark):
    case, scores = _run(benchmark)
    # the red corner: r0 (easy), r1 (junk), p0 (hard), then gray and blue; b0: b1 before the rest
    for name in ("", "_medium", "_hard", "_easy", "_medium_p1", "_hard_p10"):
        assert scores[f"retrieval{name}"] == pytest.approx(100)
    rows = evals.TYPES["retrieval"].figures(case)["retrieved"].rows
    assert len(rows) == 2 and rows[0][0].image.shape == (8, 12, 3)
    assert rows[0][1].frame == rows[0][2].frame  # both right
    # With whole queries most of q is blue: gray, blue, blue come first; without r1 the ranks of r0
    # and p0 are 3 and 4, or the other way round.
    _, scores = _run(benchmark, crop_queries=False)
    hidden = (0 / 3 + 1 / 4 + 1 / 4 + 2 / 5) / 4
    assert scores["retrieval"] == pytest.approx(100 * (hidden + 1) / 2)
    for missing, named in (("jpg/p0.png", "p0"), ("gnd.json", "gnd.json")):
        (benchmark / missing).unlink()
        with pytest.raises(InputError, match=named):
            _run(benchmark)


def test_each_image_of_a_labelled_set_looks_for_its_label_among_all_others():
    shades = [(200, 20, 20), (190, 30, 20), (20, 20, 200), (30, 20, 190), (120, 20, 110)]
    images = np.stack([np.full((8, 8, 3), shade, np.uint8) for shade in shades])
    case = _case(fakes.Source(images, labels=np.array([0, 0, 1, 1, 0])), _colors)
    scores = evals.TYPES["retrieval"].run(case)
    # by cosine: red finds red, then the mixture: 1; blue finds blue: 1; the mixture finds both blue
    # or both red ones first
    vectors = np.array(shades, float) / np.linalg.norm(shades, axis=1, keepdims=True)
    order = [i for i in np.argsort(-(vectors @ vectors[4])) if i != 4]
    places = sorted(order.index(i) for i in (0, 1))
    last = np.mean([((j / p if p else 1) + (j + 1) / (p + 1)) / 2 for j, p in enumerate(places)])
    assert scores["retrieval"] == pytest.approx(100 * (4 + last) / 5)
    assert scores["retrieval_p1"] == pytest.approx(100 * (4 + (places[0] == 0)) / 5)
    assert set(scores) == {"retrieval", "retrieval_p1", "retrieval_p5", "retrieval_p10"}
    with pytest.raises(InputError, match="label"):  # no two images share one
        evals.TYPES["retrieval"].run(_case(fakes.Source(images, labels=np.arange(5)), _colors))
