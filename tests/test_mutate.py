"""The mutation check: which mutants it makes, and that it tells tested lines from untested ones."""

import ast
import textwrap

import pytest

from tests import mutate


def changed(source: str) -> list[str]:
    """The changed sources of one-line modules."""
    return [mutant.source for mutant in mutate.mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a + b", ["x = a - b"]),
        ("x = a - b", ["x = a + b"]),
        ("x = a * b", ["x = a / b"]),
        ("x = a / b", ["x = a * b"]),
        ("x = a & b", ["x = a | b"]),
        ("x = (a + b) * c", ["x = (a + b) / c", "x = (a - b) * c"]),
        ("x += a", ["x -= a"]),
        ("x = -a", ["x = a"]),
        ("x = ~a", ["x = a"]),
        ("x = a < b", ["x = a <= b"]),
        ("x = a >= b", ["x = a > b"]),
        ("x = a == b != c", ["x = a != b != c", "x = a == b == c"]),
        ("eps = 1e-08", ["eps = 0.0", "eps = 0.0001"]),
        ("eps = finfo(t).tiny", ["eps = 0.0", "eps = finfo(t).tiny ** 0.5"]),
        ("x = 0.5", ["x = 1.5"]),
        ("x = 3", ["x = 4"]),
        ("x = -3", ["x = -2"]),
        ("x = a[0]", ["x = a[1]"]),
        ("x = a[1]", ["x = a[2]"]),
        ("x = a.shape[1]", ["x = a.shape[0]"]),
        ("x = a.shape[-1]", ["x = a.shape[-2]"]),
        ("x = f(a, axis=0)", ["x = f(a, axis=1)"]),
        ("x = f(a, axis=-2)", ["x = f(a, axis=-1)"]),
        ("x = f(a, axis=(1, -1))", ["x = f(a, axis=(0, -1))", "x = f(a, axis=(1, -2))"]),
        ("x = einsum('...id,jd->...ij', a, b)", ["x = einsum('...id,jd->...ji', a, b)"]),
        ("x = a % b", ["x = (a + 1) % b"]),
        ("x = a // b", ["x = a // b + 1"]),
        ("x = lax.stop_gradient(a)", ["x = a"]),
        ("x = tree.map(lax.stop_gradient, a)", ["x = tree.map(lambda value: value, a)"]),
        ("x = jnp.where(a, b, c)", ["x = jnp.where(a, c, b)"]),
    ],
)
def test_mutants_of_one_line(source, expected):
    assert changed(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "'a docstring: 1 + 1'",
        "x = True",
        "x = 'a' + b",
        "x = f'{a + 1:.3f}' + b",
        "x = '%d' % a",
        "x: Tuple[1]",
        "x = a is None",
        "x = a @ b",
        "x = jnp.where(a, b, b)",
        "x = einsum('id->i', a)",
    ],
)
def test_what_has_no_mutants(source):
    assert changed(source) == []


FUNCTION = '''
"""Two lines
of text."""

def loss(x, y, eps=1e-6):  # lost by unparse
    """1 + 1"""
    top = jax.lax.stop_gradient(jnp.max(x, axis=-1))
    return jnp.where(x > 0, -x / (y + eps), top[(i + 1) % n])
'''


def test_mutants_parse_and_differ():
    every = mutate.mutants(FUNCTION)
    original = ast.dump(ast.parse(FUNCTION))
    dumps = [ast.dump(ast.parse(mutant.source)) for mutant in every]
    assert original not in dumps
    assert len(set(dumps)) == len(dumps) == 13
    assert [mutant.line for mutant in every] == [5] * 2 + [7] * 2 + [8] * 9
    assert len({mutant.change for mutant in every}) == len(every)


def test_mutants_change_one_line_only():
    original = ast.unparse(ast.parse(FUNCTION)).splitlines()
    for mutant in mutate.mutants(FUNCTION):
        lines = mutant.source.splitlines()
        assert len(lines) == len(original)
        assert sum(a != b for a, b in zip(lines, original)) == 1, mutant.change


def test_change_is_shown_where_it_is():
    (mutant,) = mutate.mutants(f"{'x' * 60} = f(a + b, {'y' * 60})")
    assert (
        mutant.change
        == f"operator flipped: ...{'x' * 33} = f(a + b, {'y' * 36}... -> ...{'x' * 33} = f(a - b,"
        f" {'y' * 36}..."
    )
    (mutant,) = mutate.mutants("x = -(-a)[b]")[:1]
    assert mutant.change == "minus dropped: x = -(-a)[b] -> x = (-a)[b]"


def test_sample_is_drawn_by_the_seed():
    every = mutate.mutants(FUNCTION)
    some = mutate.sample(every, 4, seed=0)
    assert len(some) == 4 and [mutant for mutant in every if mutant in some] == some
    assert mutate.sample(every, 4, seed=0) == some
    assert any(mutate.sample(every, 4, seed=seed) != some for seed in range(1, 5))
    assert mutate.sample(every, None, seed=0) == mutate.sample(every, 99, seed=0) == every


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


COPIED = ("toy.py", "test_toy.py")


@pytest.mark.parametrize("jobs", [1, 2])
def test_tested_mutants_are_killed_and_others_survive(tmp_path, jobs):
    write(
        tmp_path,
        toy="""
            def tested(a, b):
                return a + b

            def untested(a, b):
                return a * b
        """,
        test_toy="""
            import toy

            def test_tested():
                assert toy.tested(2, 3) == 5
                toy.untested(1, 2)
        """,
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = mutate.survey(tmp_path, "toy.py", "test_toy.py", copied=COPIED, jobs=jobs)
    assert (outcome.total, len(outcome.survivors), outcome.late) == (2, 1, 0)
    assert str(outcome).startswith("toy.py: 1 / 2 killed (")
    assert str(outcome).endswith(
        "\n  survived: toy.py:6: operator flipped: return a * b -> return a / b"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_endless_mutants_are_killed(tmp_path):
    toy = """
        def up(low, high):
            while low < high:
                low += 1.0
            return low
    """
    write(tmp_path, toy=toy, test_toy="import toy\n\ndef test_up():\n    assert toy.up(0, 2) >= 2")
    outcome = mutate.survey(tmp_path, "toy.py", "test_toy.py", copied=COPIED, jobs=2, seconds=4)
    assert outcome.late >= 1 and "low -= 1.0" not in str(outcome)
    assert outcome.seconds < 60
    assert f"killed, {outcome.late} of them at the time limit" in str(outcome)


def test_runs_that_something_else_ends_are_no_verdict(tmp_path):
    toy = """
        def once(a, b):
            return a + b

        def always(a, b):
            return a * b
    """
    test = """
        import os, pathlib, signal
        import toy

        def test_always():
            if toy.always(2, 3) != 6:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_once():
            ended = pathlib.Path("ended_once")
            if toy.once(2, 3) != 5 and not ended.exists():
                ended.touch()
                os.kill(os.getpid(), signal.SIGTERM)
            assert toy.once(2, 3) == 5
    """
    write(tmp_path, toy=toy, test_toy=test)
    outcome = mutate.survey(tmp_path, "toy.py", "test_toy.py", copied=COPIED)
    assert (outcome.total, outcome.survivors, outcome.stopped) == (1, (), 1)
    assert str(outcome).startswith("toy.py: 1 / 1 killed, 1 not judged (")


def test_tests_that_fail_by_themselves_are_an_error(tmp_path):
    write(tmp_path, toy="x = 1", test_toy="import toy\n\ndef test_x():\n    assert toy.x == 2")
    with pytest.raises(
        RuntimeError, match=r"test_toy.py must pass on the unchanged toy.py(.|\n)*assert 1 == 2"
    ):
        mutate.survey(tmp_path, "toy.py", "test_toy.py", copied=COPIED)


def test_tests_of_something_else_are_an_error(tmp_path):
    write(tmp_path, toy="x = 1", test_toy="def test_nothing():\n    pass")
    with pytest.raises(RuntimeError, match="they test another copy"):
        mutate.survey(tmp_path, "toy.py", "test_toy.py", copied=COPIED)


def test_command_line(capsys):
    mutate.main(["vectors", "--list", "--limit", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("ssl_jax/ops/vectors.py:") for line in lines)
    with pytest.raises(SystemExit):
        mutate.main(["nothing"])
    assert "unknown modules ['nothing']" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        mutate.main(["vectors", "--limit", "0"])
