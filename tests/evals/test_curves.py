"""The curves of a run: what is read of a table of metrics, and which plots show it."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.evals import curves
from ssl_jax.methods.base import Meaning, entropies


def plots(figure):
    """{title: axes} of a figure of curves."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def lines(axes):
    """The names of the curves of a plot."""
    return [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]


def test_curves(tmp_path):
    table = tmp_path / "metrics.csv"
    rows = ["step,loss,cls_kl,lr,momentum,note,grad_norm"]
    rows += [
        f"{i},{5 - i / 20 + (i % 3) / 5},{1 / (i + 1)},{0.001 * i},{0.99},x,{1 + i % 4}"
        for i in range(40)
    ]
    rows += ["40,nan,,0.04,0.99,x,"]
    table.write_text("\n".join(rows))
    metrics = curves.read_metrics(table)
    assert metrics["step"][-1] == 40 and np.isnan(metrics["loss"][-1])
    assert np.isnan(metrics["note"]).all()
    scores = {"step": np.array([0.0, 20, 40]), "knn": np.array([10.0, 40, 50])}
    path = curves.draw(metrics, tmp_path / "new" / "folder", scores=scores, shown={"knn": "k-NN"})
    with Image.open(path) as drawn:
        assert min(drawn.size) > 150


def test_curves_need_something_to_draw(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="step"):
        curves.read_metrics(tmp_path / "empty.csv")
    with pytest.raises(InputError):
        curves.draw({"step": np.arange(3.0), "loss": np.full(3, np.nan)}, tmp_path)


def test_running_mean_keeps_constants_and_the_length():
    np.testing.assert_allclose(curves.running_mean(np.full(10, 3.0), 4), 3)
    np.testing.assert_allclose(curves.running_mean([0, 3, 6, 9], 3), [1.5, 3, 6, 7.5])
    assert len(curves.running_mean([1.0, 2.0], 5)) == 2


def test_scores_of_a_unit_share_a_plot_and_bootstrapping_has_its_own(tmp_path, figures):
    scores = {n: i + np.arange(3.0) for i, n in enumerate(("step", "knn", "linear", "psnr"))}
    shown = {"psnr": "PSNR, dB", "knn": "k-NN", "linear": "linear", "dense": "not measured"}
    names = ("bootstrapping_ratio", "bootstrapping_share", "object_usage")
    metrics = {"step": np.arange(3.0)} | {name: np.ones(3) for name in names}
    curves.draw(metrics, tmp_path, scores=scores, shown=shown)
    found = plots(figures[0])
    assert found["PSNR"].get_ylabel() == "dB"
    (line,) = found["PSNR"].lines
    np.testing.assert_array_equal(line.get_ydata(), scores["psnr"])
    assert lines(found["Scores on frozen features"]) == ["knn", "linear"]
    expected = ["bootstrapping ratio", "bootstrapping share"]
    assert lines(found["Objects whose neighbour leads back"]) == expected
    assert lines(found["Usage and agreement"]) == ["object usage"]


def test_entropies_have_their_limit_and_a_rise_its_reason(tmp_path, figures):
    names = ("loss", "grad_norm", "cls_teacher_entropy", "patch_marginal_entropy", "free_entropy")
    metrics = {"step": np.arange(3.0)} | {name: np.ones(3) for name in names}
    why = "the more anchors are in use, the more there is to choose among " * 3
    meanings = entropies(cls=512, patch=64) | {"loss": Meaning(rises_with="usage", why=why)}
    curves.draw(metrics, tmp_path, meanings=meanings)
    found = plots(figures[0])
    entropy = found["Entropy of the targets"]
    limits = [line.get_ydata()[0] for line in entropy.lines if line.get_linestyle() != "-"]
    assert limits == pytest.approx([np.log(64), np.log(512)])
    assert why.strip() in " ".join(found["Loss"].get_xlabel().split())
    for name in ("Gradient norm", "Loss"):
        assert all(line.get_linestyle() == "-" for line in found[name].lines)
    curves.draw(metrics, tmp_path)  # of a method that says nothing
    assert not any(axes.texts for axes in figures[1].axes)
