"""`ssl-jax show` without a config, and `--keys`."""

from ssl_jax import cli
from ssl_jax import config as config_lib
from ssl_jax.cli import catalogue
from ssl_jax.config import key


def shown(capsys, *arguments):
    assert cli.main(["ssl-jax", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_every_config_and_paper_is_listed(capsys):
    text = shown(capsys)
    for name, path in config_lib.shipped().items():
        assert f"{name}: " in text
        for variant in config_lib.read_module(path).VARIANTS:
            assert f" {variant}" in text
    assert "papers: ssl-jax show --paper=NAME, one of cribo," in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_key_means():
    declared = {
        "a.rate": key(0.5, "how fast", "steps", above=0),
        "a.kind": key("x", "which one", choices=("x", "y")),
        "b.names": key(("p",), "of things"),
    }
    lines = catalogue.explained(declared).splitlines()
    assert lines == [
        "a.kind: which one (default 'x'; one of x, y)",
        "a.rate: how fast (default 0.5; steps; above 0)",
        "b.names: of things (default ('p',); names)",
    ]
    assert catalogue.explained(declared, "fast") == lines[1]


def test_keys_of_all_methods_and_of_one_config(capsys):
    text = shown(capsys, "--keys=optim.weight_decay")
    assert text.startswith("optim.weight_decay: ") and "default 0.04" in text
    everything = shown(capsys, "--keys")
    assert "\nflsl." in everything and "\nevals.davis." in everything
    of_sop = shown(capsys, "--keys", "--config=sop:photos")
    assert "\nsop." in of_sop and "\nflsl." not in of_sop and "\nevals.davis." not in of_sop
