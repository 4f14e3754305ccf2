"""The curves of a run: what is read of a table of metrics, and which plots show it."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.methods.base import Meaning, entropies
from ssl_jax.report import curves, folders, style


def plots(figure):
    """{title: axes} of a figure of curves."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def test_curves(tmp_path, figures):
    table = tmp_path / "metrics.csv"
    rows = [f"{i},{5 - i / 20},{0.001 * i},x,{1 + i % 4}" for i in range(40)]
    table.write_text("\n".join(["step,loss,lr,note,grad_norm", *rows, "40,nan,0.04,x,"]))
    metrics = folders.read_metrics(table)
    assert metrics["step"][-1] == 40 and np.isnan(metrics["loss"][-1])
    assert np.isnan(metrics["note"]).all()
    scores = {n: i + np.arange(3.0) for i, n in enumerate(("step", "knn", "psnr"))}
    shown = {"psnr": "PSNR, dB", "knn": "k-NN", "dense": "not measured"}
    path = curves.draw(metrics, tmp_path / "new" / "folder", scores=scores, shown=shown)
    with Image.open(path) as drawn:
        assert min(drawn.size) > 150
    (line,) = plots(figures[0])["PSNR"].lines
    np.testing.assert_array_equal(line.get_ydata(), scores["psnr"])
    with pytest.raises(InputError):  # nothing to draw
        curves.draw({"step": np.arange(3.0), "loss": np.full(3, np.nan)}, tmp_path)
    np.testing.assert_allclose(style.running_mean([0, 3, 6, 9], 3), [1.5, 3, 6, 7.5])


def test_entropies_have_their_limit_and_a_rise_its_reason(tmp_path, figures):
    names = ("loss", "grad_norm", "cls_teacher_entropy", "patch_marginal_entropy")
    metrics = {"step": np.arange(3.0)} | {name: np.ones(3) for name in names}
    why = "the more anchors are in use, the more there is to choose among"
    meanings = entropies(cls=512, patch=64) | {"loss": Meaning(rises_with="usage", why=why)}
    curves.draw(metrics, tmp_path, meanings=meanings)
    found = plots(figures[0])
    entropy = found["Entropy of the targets"]
    limits = [line.get_ydata()[0] for line in entropy.lines if line.get_linestyle() != "-"]
    assert limits == pytest.approx([np.log(64), np.log(512)])
    assert why in " ".join(found["Loss"].get_xlabel().split())
