"""Entries of the store, whose notes anybody may have written."""

import json

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.features.store import Entry


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["arrays"].update({"../../precious": [[3], "int64"]}),
        lambda meta: meta.update(arrays=[]),
        lambda meta: meta.pop("key"),
    ],
)
def test_notes_that_are_no_ones_own_are_refused_and_remove_nothing(change, tmp_path):
    precious = tmp_path / "precious.npy"
    np.save(precious, np.arange(3))
    entry = Entry(tmp_path / "folder" / "entry", {"network": "a"})
    with entry.new() as folder:
        entry.finish(folder, {"image": np.zeros((2, 3))}, skipped=[])
    file = tmp_path / "folder" / "entry" / "meta.json"
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))
    for use in (entry.read, entry.remove):
        with pytest.raises(InputError, match="meta.json"):
            use()
    assert precious.exists() and (file.parent / "image.npy").exists()
