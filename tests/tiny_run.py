"""Config file of a tiny run for command-line tests: tests/tiny_run.py:METHOD."""

from tests import tiny


def get_config(method: str):
    config = tiny.config(method)
    config.checkpoint.every_steps = 2
    config.eval.update(dict(tasks=("knn",), every_steps=4, train_examples=40, test_examples=20))
    config.eval.image.update(dict(kind="digits", size=24))
    return config
