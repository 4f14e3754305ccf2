"""Warnings come once; a curve that rises as it should is explained once."""

from ssl_jax.methods import base
from ssl_jax.train import health

WHY = "more to choose among"


def monitor(warnings=(), **meanings):
    method = base.Method(*[None] * 5, health=lambda row: list(warnings), meanings=meanings)
    return health.Monitor(method)


def said(watch, losses, usages):
    rows = zip(losses, usages, strict=True)
    return [watch({"loss": loss, "cls_loss": loss, "usage": u}) for loss, u in rows]


def test_a_rise_with_its_cause_is_explained_once():
    meaning = base.Meaning(rises_with="usage", why=WHY)
    losses = [*[4.0] * 6, *[4.5] * 12]
    up = [*[0.1] * 6, *[0.2] * 12]
    notes = sum(said(monitor(loss=meaning, cls_loss=meaning), losses, up), [])
    assert len(notes) == 1 and notes[0].startswith("note: loss ") and WHY in notes[0]
    # Not where the cause is missing, nor without a rise, nor of a method that says nothing.
    assert not any(said(monitor(loss=meaning), losses, [0.1] * 18))
    assert not any(said(monitor(loss=meaning), losses[::-1], up))
    assert not any(said(monitor(), losses, up))
    # A curve is not excused while something is wrong.
    lines = sum(said(monitor(["collapse: all alike"], loss=meaning), losses, up), [])
    assert lines == ["warning: collapse: all alike"]
