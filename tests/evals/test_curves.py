"""The curves of a run are written, are not blank, and show what they are given."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import curves
from ssl_jax.methods.base import Meaning, entropies
from tests.evals.test_pictures import is_a_picture


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
    assert (
        metrics["step"][-1] == 40
        and np.isnan(metrics["loss"][-1])
        and np.isnan(metrics["note"]).all()
    )
    scores = {"step": np.array([0.0, 20, 40]), "knn": np.array([10.0, 40, 50])}
    path = curves.draw(metrics, tmp_path / "new" / "folder", scores=scores, shown={"knn": "k-NN"})
    is_a_picture(path)
    assert path == tmp_path / "new" / "folder" / "curves.png"


def test_curves_need_something_to_draw(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match='header with "step"'):
        curves.read_metrics(tmp_path / "empty.csv")
    with pytest.raises(InputError, match="no known curve"):
        curves.draw({"step": np.arange(3.0), "loss": np.full(3, np.nan)}, tmp_path)


def test_running_mean_keeps_constants_and_the_length():
    np.testing.assert_allclose(curves.running_mean(np.full(10, 3.0), 4), 3)
    np.testing.assert_allclose(curves.running_mean([0, 3, 6, 9], 3), [1.5, 3, 6, 7.5])
    assert len(curves.running_mean([1.0, 2.0], 5)) == 2


def test_scores_of_another_unit_have_a_plot_of_their_own(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        curves, "_draw_plot", lambda ax, plot, table, names: drawn.append((*plot[:2], names))
    )
    scores = {name: np.arange(3.0) for name in ("step", "knn", "linear", "psnr", "rank")}
    shown = {"psnr": "PSNR, dB", "knn": "k-NN", "linear": "linear", "dense": "not measured"}
    curves.draw({"step": np.arange(3.0), "loss": np.ones(3)}, tmp_path, scores=scores, shown=shown)
    assert drawn[1:] == [
        ("PSNR", "dB", ["psnr"]),
        ("Scores on frozen features", "percent", ["knn", "linear"]),
    ]


def test_bootstrapping_has_a_plot_of_its_own(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        curves, "_draw_plot", lambda ax, plot, table, n: drawn.update({plot.title: n})
    )
    names = ("bootstrapping_ratio", "bootstrapping_share", "object_usage")
    curves.draw({"step": np.arange(3.0)} | {name: np.ones(3) for name in names}, tmp_path)
    assert drawn["Objects whose neighbour leads back"] == list(names[:2])
    assert drawn["Usage and agreement"] == ["object_usage"]


def test_entropies_have_their_limit_and_a_rise_its_reason(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(curves, "save", lambda fig, folder, name: figures.append(fig))
    names = ("loss", "grad_norm", "cls_teacher_entropy", "patch_marginal_entropy", "free_entropy")
    metrics = {"step": np.arange(3.0)} | {name: np.ones(3) for name in names}
    why = "the more anchors are in use, the more there is to choose among " * 3
    meanings = entropies(cls=512, patch=64) | {"loss": Meaning(rises_with="usage", why=why)}
    curves.draw(metrics, tmp_path, meanings=meanings)
    axes = {ax.get_title(loc="left"): ax for ax in figures[0].axes}
    entropy = axes["Entropy of the targets"]
    limits = [line.get_ydata()[0] for line in entropy.lines if line.get_linestyle() != "-"]
    assert limits == pytest.approx([np.log(64), np.log(512)])
    assert [text.get_text() for text in entropy.texts] == ["log 64", "log 512"]
    below = axes["Loss"].get_xlabel()
    assert " ".join(below.split()) == f"step may rise while learning goes well: {why.strip()}"
    assert max(map(len, below.splitlines())) <= 70
    for ax in (axes["Gradient norm"], axes["Loss"]):
        assert not ax.texts and all(line.get_linestyle() == "-" for line in ax.lines)
    curves.draw(metrics, tmp_path)  # of a method that says nothing
    assert not any(ax.texts for ax in figures[1].axes)
