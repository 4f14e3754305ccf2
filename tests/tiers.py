"""The table of what the tiers of the tests took, from their JUnit files.

    python -m tests.tiers .cache/tests

A test that took more than LIMIT CPU seconds and is marked neither slow nor nightly is named. That
is no failure: on a machine with other work, a test of half a second was once given eleven.
"""

import argparse
import pathlib
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

LIMIT = 10  # CPU seconds of an unmarked test, its fixtures left out
SHOWN = 10  # of the slowest


def read(path: pathlib.Path) -> tuple[float, list[dict]]:
    """Wall seconds of a tier, and its tests: name, cpu (seconds), called (of it without fixtures),
    marked, outcome."""
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    tests = []
    for case in suite.iter("testcase"):
        told = {p.get("name"): p.get("value") for p in case.iter("property")}
        bad = [tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None]
        tests.append(
            dict(
                name=f"{case.get('classname')}::{case.get('name')}",
                cpu=float(told.get("cpu", 0)),
                called=float(told.get("cpu_call", 0)),
                marked=told.get("marked") == "True",
                outcome=bad[0] if bad else "passed",
            )
        )
    return float(suite.get("time", 0)), tests


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args(arguments).folder
    paths = sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime)
    tiers = {path.stem: read(path) for path in paths}
    console = Console(width=110, markup=False, soft_wrap=True)
    table = Table("tier", "tests", "failed", "skipped", "CPU min", "wall min")
    for tier, (wall, tests) in tiers.items():
        outcomes = [test["outcome"] for test in tests]
        failed = len(outcomes) - outcomes.count("passed") - outcomes.count("skipped")
        minutes = sum(test["cpu"] for test in tests) / 60
        counts = (len(tests), failed, outcomes.count("skipped"))
        table.add_row(tier, *map(str, counts), f"{minutes:.1f}", f"{wall / 60:.1f}")
    console.print(table)
    every = [test for _, tests in tiers.values() for test in tests]
    for test in sorted(every, key=lambda test: -test["cpu"])[:SHOWN]:
        console.print(f"{test['cpu']:6.1f} CPU s  {test['name']}", highlight=False)
    for test in every:
        if test["outcome"] in ("failure", "error"):
            console.print(f"failed: {test['name']}", highlight=False)
        elif test["called"] > LIMIT and not test["marked"]:
            console.print(
                f"{test['name']} took {test['called']:.1f} CPU s: make it cheaper than {LIMIT}, or"
                " mark it slow or nightly"
            )


if __name__ == "__main__":
    main()
