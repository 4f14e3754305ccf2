"""Completion: what a shell that asks is told."""

import os
import subprocess
import sys

import pytest

from ssl_jax import cli
from ssl_jax import config as config_lib
from ssl_jax.cli import completion


def test_flags_are_those_that_the_help_explains():
    assert "--coordinator" in completion.flags("train")
    assert {"--out", "--tokens", "--size"} <= set(completion.flags("embed"))
    for command in cli.COMMANDS:
        assert "--help" not in completion.flags(command)  # argparse has it already


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ssl-jax ev", {"eval"}),
        ("ssl-jax train --work", {"--workdir"}),
        ("ssl-jax train --config=stel", {"--config=stellar"}),
        ("ssl-jax train --config=quickstart:", {"photos", "imagenette96"}),
        ("ssl-jax train --config=sop:photos --config.sop.cls.w", {"--config.sop.cls.weight"}),
        ("ssl-jax embed runs/a --config.data.k", {"--config.data.kind"}),
    ],
)
def test_what_fits(tmp_path, line, wanted):
    """As argcomplete's shell code asks: the line in the environment, the answer in a file."""
    environment = {
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer"),
    }
    code = "import sys; from ssl_jax import cli; sys.exit(cli.main())"
    subprocess.run([sys.executable, "-c", code], env=os.environ | environment, timeout=300)
    answer = {word.rpartition(":")[2] for word in (tmp_path / "answer").read_text().split("\n")}
    assert {word.removesuffix(" ") for word in answer} == wanted


def test_a_config_that_does_not_exist_has_no_variants():
    assert completion._configs("sopp:") == config_lib.shipped()
