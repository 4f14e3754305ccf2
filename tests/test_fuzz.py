"""The command that tries what nobody should give."""

from tests import damaged, fuzz, values_of_keys


def test_the_tables_and_the_exit_code(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz -->\nold\n<!-- end of fuzz -->\nafter\n")
    two = {name: fuzz.methods.METHODS[name] for name in ("sop", "sove")}
    monkeypatch.setattr(fuzz.methods, "METHODS", two)
    arguments = ["--values=1", "--images=3", "--seed=1", f"--write={page}"]
    assert fuzz.main(arguments) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    rows = {
        line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")
        for line in text.splitlines()
    }
    assert rows["`sop.*`"][1:3] == [str(keys := int(rows["`sop.*`"][1]))] * 2 and keys > 20
    assert int(rows["jpeg"][1]) >= 3 and rows["jpeg"][4] == "0"
    assert "--images 3 --seed 1" in text

    def try_all(method, values_of, built, chance):
        return values_of_keys.Tally(1, 1, others=1), [f"{method}: KeyError"]

    monkeypatch.setattr(fuzz.values_of_keys, "try_all", try_all)
    monkeypatch.setattr(fuzz, "images_tried", lambda *_: [("images",)])
    assert fuzz.main(arguments[:-1]) == 1
    assert "sove: KeyError" in capsys.readouterr().err
    damaged.tally = damaged.Tally()  # nothing that counts at the end of a run
