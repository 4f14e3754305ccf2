"""Mutation check: small wrong changes to one module of ssl_jax.ops, and whether its tests notice
them.

    python -m tests.mutate koleo memory           every mutant of two modules
    python -m tests.mutate --limit 20 --seed 1    a random sample of 20 per module, all modules
    python -m tests.mutate nearest --jobs 2       two mutants at a time
    python -m tests.mutate nearest --list         print the mutants, run nothing

Run it in the checkout, in the environment of the tests. A mutant is one edit of the syntax tree:

- "+" and "-", "*" and "/", "&" and "|", < and <=, > and >=, == and != change places;
- a minus or ~ is dropped;
- an eps (a float up to 1e-3, or finfo's eps or tiny) is dropped or becomes its square root, another
  float grows by 1;
- axes -1 and -2, 0 and 1 change places, so do the last two of an einsum's output;
- other integers, the argument of % (a ring index) and the result of // grow by 1;
- a stop_gradient is dropped;
- the two values of a `where` change places.

Annotations and f-strings are left alone.

Each mutant is written into a temporary copy of the package and its tests (the checkout is never
touched) and tests/ops/test_MODULE.py runs there with `pytest -x`, on the CPU and with a compilation
cache that all mutants share. A module without tests of its own (arguments, vectors) runs all of
tests/ops. Killed: a test fails, or the run takes more than ten times as long as with the original.
Before that the original has to pass and a module that cannot be imported has to fail, or the result
would mean nothing. A run that something else stops (SIGTERM, SIGKILL: out of memory) is no verdict:
it is repeated, and left out of the count if that happens again.

Survivors are listed as file:line and what was changed. Not every one is a gap: some mutants compute
the same (the transpose of a symmetric matrix, a stop_gradient where another one follows).
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import os
import pathlib
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE, TESTS = "ssl_jax/ops", "tests/ops"
COPIED = ("ssl_jax", "tests", "pyproject.toml")
LARGEST_EPS = 1e-3
STOPPED = (-signal.SIGTERM, -signal.SIGKILL)  # exit statuses of a run that was ended from outside
ATTEMPTS = 3

_SWAPPED = {
    ast.Add: ast.Sub,
    ast.Mult: ast.Div,
    ast.BitAnd: ast.BitOr,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
}
_SWAPPED |= {new: old for old, new in _SWAPPED.items()}
_UNMARKED = {ast.USub: "minus dropped", ast.Invert: "~ dropped"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    line: int  # in the original
    kind: str
    before: str  # the line that changed, as ast.unparse writes it
    after: str
    source: str  # of the whole module

    @property
    def change(self) -> str:
        return f"{self.kind}: {' -> '.join(_around_difference(self.before, self.after))}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    file: str
    total: int  # mutants judged
    survivors: tuple[Mutant, ...]
    late: int  # of the killed: stopped at the time limit
    stopped: int  # not judged: something else ended every attempt
    seconds: float

    def __str__(self) -> str:
        late = f", {self.late} of them at the time limit" if self.late else ""
        late += f", {self.stopped} not judged" if self.stopped else ""
        lines = [
            f"{self.file}: {self.total - len(self.survivors)} / {self.total} killed{late}"
            f" ({self.seconds:.0f} s)"
        ]
        return "\n".join(
            lines
            + [
                f"  survived: {self.file}:{mutant.line}: {mutant.change}"
                for mutant in self.survivors
            ]
        )


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module in the order of its lines: each parses and differs from the source
    and from the others.
    """
    tree = ast.parse(source)
    original = ast.unparse(tree)
    texts, edited = {original}, []
    for node, put, axis in _places(tree):
        for kind, new in _edits(node, axis):
            put(new)
            text = ast.unparse(tree)
            put(node)
            if text not in texts:
                ast.parse(text)
                texts.add(text)
                before, after = next(
                    (a, b) for a, b in zip(original.splitlines(), text.splitlines()) if a != b
                )
                edited.append(Mutant(node.lineno, kind, before.strip(), after.strip(), text))
    return sorted(edited, key=lambda mutant: mutant.line)


def sample(every: Sequence[Mutant], limit: int | None, seed: int) -> list[Mutant]:
    """At most `limit` of the mutants, drawn by the seed, in their order; all without a limit."""
    if limit is None or limit >= len(every):
        return list(every)
    return [every[i] for i in sorted(random.Random(seed).sample(range(len(every)), limit))]


def survey(
    root,
    file: str,
    tests: str,
    *,
    copied: Sequence[str] = COPIED,
    limit=None,
    seed=0,
    jobs=1,
    seconds: float | None = None,
) -> Outcome:
    """Runs the tests against mutants of one file; all paths relative to root, of which only copies
    are written.

    A run may take `seconds`, by default ten times those of the original, a minute at least.

    Raises:
      RuntimeError: the tests do not pass on the original, or do not import the file.
    """
    started = time.monotonic()
    root = pathlib.Path(root)
    source = (root / file).read_text(encoding="utf-8")
    chosen = sample(mutants(source), limit, seed)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees = [pathlib.Path(folder, f"tree{i}") for i in range(jobs)]
        for tree in trees:
            _copy(root, tree, copied)
        cache = pathlib.Path(folder, "xla")

        # Through unparse like every mutant, so that nothing but the edit distinguishes them.
        original = ast.unparse(ast.parse(source))
        began = time.monotonic()
        status, output = _pytest(trees[0], file, original, tests, cache, None)
        took = time.monotonic() - began  # compilations included: a mutant may need all of them anew
        if status != 0:
            raise RuntimeError(
                f"{tests} must pass on the unchanged {file}, but pytest returned"
                f" {status}:\n{output[-3000:]}"
            )
        status, _ = _pytest(
            trees[0],
            file,
            "raise ImportError('a mutant that every test must notice')",
            tests,
            cache,
            None,
        )
        if status == 0:
            raise RuntimeError(
                f"{tests} pass although {file} cannot be imported: they test another copy of it"
            )
        seconds = seconds or max(60.0, 10 * took)

        free = queue.SimpleQueue()
        for tree in trees:
            free.put(tree)

        def judge(mutant: Mutant) -> int | None:
            tree = free.get()
            try:
                for _ in range(ATTEMPTS):
                    status, _ = _pytest(tree, file, mutant.source, tests, cache, seconds)
                    if status not in STOPPED:
                        break
                return status
            finally:
                free.put(tree)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            statuses = list(pool.map(judge, chosen))
    survivors = tuple(mutant for mutant, status in zip(chosen, statuses) if status == 0)
    stopped = sum(status in STOPPED for status in statuses)
    return Outcome(
        file,
        len(chosen) - stopped,
        survivors,
        statuses.count(None),
        stopped,
        time.monotonic() - started,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    known = sorted(path.stem for path in (ROOT / PACKAGE).glob("[!_]*.py"))
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutate", description="Mutation check of ssl_jax.ops."
    )
    parser.add_argument(
        "modules",
        nargs="*",
        metavar="MODULE",
        help=f"of {PACKAGE}; default: all ({', '.join(known)})",
    )
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="a random sample of N mutants per module"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument(
        "--jobs", type=_count, default=1, help="mutants tested at a time (default: 1)"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.modules) - set(known)):
        parser.error(f"unknown modules {unknown}; there are {known}")
    outcomes = []
    for module in options.modules or known:
        file = f"{PACKAGE}/{module}.py"
        if options.list:
            for mutant in sample(
                mutants((ROOT / file).read_text(encoding="utf-8")), options.limit, options.seed
            ):
                print(f"{file}:{mutant.line}: {mutant.change}")
            continue
        own = f"{TESTS}/test_{module}.py"
        tests = own if (ROOT / own).exists() else TESTS
        outcomes.append(
            survey(ROOT, file, tests, limit=options.limit, seed=options.seed, jobs=options.jobs)
        )
        print(outcomes[-1], flush=True)
    if len(outcomes) > 1:
        total = sum(outcome.total for outcome in outcomes)
        print(
            f"all: {total - sum(len(outcome.survivors) for outcome in outcomes)} / {total} killed"
        )


def _places(
    node: ast.AST, axis: bool = False
) -> Iterator[tuple[ast.expr | ast.stmt, Callable, bool]]:
    """(node, what puts another one into its place, whether it stands for an axis) of all nodes that
    may be edited.
    """
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or isinstance(value, ast.JoinedStr):
            continue
        if isinstance(node, ast.keyword):
            inside = node.arg in ("axis", "axes")
        elif isinstance(node, ast.Subscript):  # x.shape[-1]
            inside = (
                field == "slice"
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "shape"
            )
        else:
            inside = axis and isinstance(node, (ast.Tuple, ast.List))
        for position, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue

            def put(new, field=field, value=value, position=position):
                if isinstance(value, list):
                    value[position] = new
                else:
                    setattr(node, field, new)

            if isinstance(child, (ast.expr, ast.stmt)):
                yield child, put, inside
            if not _is_integer(child):  # -1 is one number and not the minus of 1
                yield from _places(child, inside)


def _edits(node: ast.AST, axis: bool) -> Iterator[tuple[str, ast.AST]]:
    """(kind, replacement) for one node; the node itself is left as it is."""
    if _is_integer(node):
        number = ast.literal_eval(node)
        swapped = {-1: -2, -2: -1} | ({0: 1, 1: 0} if axis else {})
        yield (
            "axis swapped" if number in swapped else "off by one",
            ast.Constant(swapped.get(number, number + 1)),
        )
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        if 0 < node.value <= LARGEST_EPS:
            yield "eps dropped", ast.Constant(0.0)
            yield "eps changed", ast.Constant(node.value**0.5)
        else:
            yield "number changed", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Attribute) and node.attr in ("eps", "tiny", "smallest_normal"):
        yield "eps dropped", ast.Constant(0.0)
        yield "eps changed", ast.BinOp(node, ast.Pow(), ast.Constant(0.5))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNMARKED:
        yield _UNMARKED[type(node.op)], node.operand
    elif isinstance(node, ast.BinOp) and not _is_text(node):
        if type(node.op) in _SWAPPED:
            yield "operator flipped", ast.BinOp(node.left, _SWAPPED[type(node.op)](), node.right)
        elif isinstance(node.op, ast.Mod):
            yield "ring index off by one", ast.BinOp(_plus_one(node.left), node.op, node.right)
        elif isinstance(node.op, ast.FloorDiv):
            yield "off by one", _plus_one(node)
    elif isinstance(node, ast.AugAssign) and type(node.op) in _SWAPPED and not _is_text(node.value):
        flipped = ast.AugAssign(node.target, _SWAPPED[type(node.op)](), node.value)
        # unparse asks a statement for its line.
        yield "operator flipped", ast.copy_location(flipped, node)
    elif isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            if type(operator) in _SWAPPED:
                operators = [*node.ops[:i], _SWAPPED[type(operator)](), *node.ops[i + 1 :]]
                yield "comparison changed", ast.Compare(node.left, operators, node.comparators)
    elif isinstance(node, ast.Call):
        name = _last_name(node.func)
        if name == "stop_gradient" and len(node.args) == 1:
            yield "stop_gradient dropped", node.args[0]
        elif name == "where" and len(node.args) == 3:
            condition, yes, no = node.args
            yield "where swapped", ast.Call(node.func, [condition, no, yes], node.keywords)
        elif name == "einsum" and node.args and isinstance(node.args[0], ast.Constant):
            head, arrow, output = str(node.args[0].value).partition("->")
            if output[-2:].isalpha() and len(output[-2:]) == 2:
                equation = ast.Constant(head + arrow + output[:-2] + output[:-3:-1])
                yield "axis swapped", ast.Call(node.func, [equation, *node.args[1:]], node.keywords)
        for i, argument in enumerate(node.args):  # jax.tree.map(jax.lax.stop_gradient, x)
            if not isinstance(argument, ast.Call) and _last_name(argument) == "stop_gradient":
                same = ast.parse("lambda value: value", mode="eval").body
                yield (
                    "stop_gradient dropped",
                    ast.Call(node.func, [*node.args[:i], same, *node.args[i + 1 :]], node.keywords),
                )


def _is_integer(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int  # not bool


def _is_text(node: ast.AST) -> bool:
    """A sum or % of strings as far as its leaves show."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _last_name(node: ast.AST) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def _plus_one(node: ast.expr) -> ast.expr:
    return ast.BinOp(node, ast.Add(), ast.Constant(1))


def _around_difference(*texts: str, context: int = 40) -> list[str]:
    """The texts without what they share further than `context` characters from where they
    differ.
    """
    head = len(os.path.commonprefix(texts))
    tail = len(os.path.commonprefix([text[head:][::-1] for text in texts]))
    start, stop = max(0, head - context), max(0, tail - context)
    return [
        ("..." if start else "") + text[start : len(text) - stop] + ("..." if stop else "")
        for text in texts
    ]


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}, but it must be 1 or more")
    return int(text)


def _copy(root: pathlib.Path, tree: pathlib.Path, names: Sequence[str]) -> None:
    for name in names:
        source, target = root / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def _pytest(
    tree, file: str, source: str, tests: str, cache, seconds: float | None
) -> tuple[int | None, str]:
    """Writes the source into the copy and runs its tests: (exit status, None at the time limit;
    what pytest printed).
    """
    (tree / file).write_text(source, encoding="utf-8")
    # What an outer pytest sets is not meant for this one. No bytecode: it is told from its source
    # by size and second, and two mutants may share both.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= dict(
        PYTHONDONTWRITEBYTECODE="1", JAX_PLATFORMS="cpu", JAX_COMPILATION_CACHE_DIR=str(cache)
    )
    environment |= dict(
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tree}",
        tests,
    ]
    printed = tree / "printed.txt"  # a file and not a pipe, which a left-over child could hold open
    with printed.open("wb") as stream:
        try:
            status = subprocess.run(
                command, cwd=tree, env=environment, timeout=seconds, stdout=stream, stderr=stream
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    return status, printed.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
