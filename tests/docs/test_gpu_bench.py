"""benchmarks/gpu.py: what it keeps, and a rehearsal on a CPU."""

import json
import subprocess
import sys

import pytest

from benchmarks import gpu as script

ROW = dict(batch=8, ms=2.0, images_per_second=4000.0, temporary=1.0, compile_seconds=3.0)


def test_a_result_is_kept_and_measured_once(tmp_path, monkeypatch):
    """One that failed is measured again."""
    asked = []

    def work(names, options):
        asked.append(names)
        yield from ((name, {"error": "no"} if name == "sop" else ROW) for name in names)

    monkeypatch.setattr(script, "_all", work)
    command = ["--only=dino,sop,dino-vitb16", f"--out={tmp_path}", "--toy"]
    assert [script.main(command), script.main(command)] == [1, 1]
    assert asked == [["dino", "sop", "dino-vitb16"], ["sop"]]
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [row["ms"] for row in rows] == [2.0, 2.0] and "| dino | 8 | 2.0 | 4000 |" in (
        tmp_path / "gpu.md"
    ).read_text()


def test_the_table_in_the_documents_is_that_of_the_records(root, monkeypatch):
    written = []
    monkeypatch.setattr(script.tables, "fill", lambda file, name, text: written.append(text))
    script.main([f"--write={root / 'experiments/records/gpu_steps.jsonl'}"])
    assert written == [script.tables.filled(root / "docs/benchmarks.md", "gpu")]


@pytest.mark.nightly
def test_rehearsal(tmp_path, root):
    command = [sys.executable, "-m", "benchmarks", "gpu", "--toy", f"--out={tmp_path}"]
    subprocess.run([*command, "--only=card,dino"], check=True, timeout=600, cwd=root)
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[1]["ms"] > 0
