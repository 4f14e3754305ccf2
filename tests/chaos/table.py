"""The table of what was thrown and what came of it."""

import statistics
from collections import Counter
from pathlib import Path

from launch import runs
from tests.chaos import lane


def markdown(entries: dict[str, list[dict]]) -> str:
    """entries: {lane: its journal}."""
    everything = [entry for journal in entries.values() for entry in journal]
    steps: dict[str, list[int]] = {}
    for journal in entries.values():
        for fault, count in lane.lost(journal):
            steps.setdefault(fault, []).append(count)
    rows = [("fault", "thrown", "survived", "steps lost: mean, most", "exit codes")]
    for name in sorted({e["fault"] for e in everything if e["struck"]}):
        found = [e for e in everything if e["fault"] == name and e["struck"]]
        codes = Counter(code for e in found for code in e["codes"] or ("hangs",))
        known = steps.get(name)
        rows.append(
            (
                name,
                len(found),
                sum(e["survived"] for e in found),
                f"{statistics.fmean(known):.1f}, {max(known)}" if known else "-",
                ", ".join(f"{code} x {count}" for code, count in sorted(codes.items(), key=str)),
            )
        )
    struck = [e for e in everything if e["struck"]]
    phases = [("phase of a strike", "thrown", "survived")]
    for name in sorted({e["phase"] for e in struck} - {""}):
        found = [e for e in struck if e["phase"] == name]
        phases.append((name, len(found), sum(e["survived"] for e in found)))
    complete = [e for e in everything if "names" in e]
    summary = (
        f"{len(struck)} faults on {len(entries)} configurations ({', '.join(entries)}),"
        f" {sum(e['survived'] for e in struck)} survived; {len(complete)} runs came to their end,"
        f" {sum(bool(e['names']) for e in complete)} of them different from the undisturbed one in"
        f" any of {sum(e['arrays'] for e in complete)} arrays and"
        f" {sum(e['rows'] for e in complete)} rows; hangs:"
        f" {sum(e['codes'] is None for e in everything)}; tracebacks:"
        f" {sum(e['tracebacks'] for e in everything)}; advice to delete something:"
        f" {sum(e['advice'] for e in everything)}."
    )
    return "\n".join((runs.markdown(rows), runs.markdown(phases), summary))


def clean(entries: dict[str, list[dict]]) -> bool:
    """Whether all was survived, and all is equal."""
    everything = [entry for journal in entries.values() for entry in journal]
    return all(e["survived"] and not e["advice"] and not e.get("names") for e in everything)


def fill(document: Path, text: str) -> None:
    """Writes the table between the document's marks, with where it was made."""
    runs.fill(document, "chaos", f"{text} {runs.provenance()}\n")
