"""A file is the old one or the new one, whatever happens to the writer."""

import pytest

from errors import UserError
from storage import digest, replace, replace_text


def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    replace_text(path, "old")

    def half(file):
        file.write(b"ne")
        raise OSError("no space left on device")

    with pytest.raises(UserError, match=f"{path} cannot be written: no space"):
        replace(path, half)
    assert path.read_text() == "old"
    replace_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "new"


def test_digest(tmp_path):
    import hashlib

    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    assert digest(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()
