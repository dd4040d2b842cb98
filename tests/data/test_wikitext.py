"""WikiText: articles come back as they were written, from a local copy, a cached one, or not at all."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from data.corpora import CORPORA
from data.prepare import count_words, prepare_split, prepare_tokenizer
from data.tokenizer import Bytes
from data.wikitext import WikiText, articles, is_title
from errors import UserError

ROOT = Path(__file__).parents[2]
SETTINGS = yaml.safe_load((ROOT / "configs/data/wikitext103.yaml").read_text())
del SETTINGS["name"]
CONFIG = SETTINGS["config"]
ARTICLES = {
    "Homarus gammarus": [
        "Large .",
        "",
        " = = Diet = = ",
        "",
        "Fish = 3 .",
        " = = = More = = = ",
        "",
    ],
    "E = MC² ( album )": [
        "It sold .",
        "",
        " = not a title = ",
        "since a line follows",
        " = nor this = ",
        "",
    ],
    "Prototype filter": ["A cut @-@ off ", " = 1 rad / s and a nominal k = ", "1 ohm .", ""],
}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (" = Title = ", True),
        (" = E = MC² = ", True),
        (" = = Section = = ", False),
        (" = = Section = ", False),
        (" = Section = = ", False),
        (" = = ", False),
        (" = = = ", False),
        (" Title = ", False),
        (" = Title ", False),
        (" =Title= ", False),
    ],
)
def test_a_title_stands_between_single_marks(line: str, title: bool) -> None:
    assert is_title(line) is title and is_title(line + "\n") is title


def rows(titles: list[str]) -> list[str]:
    """As in the hub's files: a blank line is an empty row, other rows end in a line end."""
    lines = [""]
    for title in titles:
        lines += [f" = {title} = ", "", *(f" {line}" if line else "" for line in ARTICLES[title])]
    return [f"{line}\n" if line else "" for line in lines]


def repository(folder: Path, train: list[list[str]], promised: int | None = None) -> Path:
    """A copy of the hub's repository: README.md and a folder a configuration, in two shards."""
    count = sum(map(len, train)) if promised is None else promised
    splits = {"train": count, "validation": len(rows(["Prototype filter"])), "test": 0}
    card = {
        "configs": [
            {
                "config_name": CONFIG,
                "data_files": [{"split": s, "path": f"{CONFIG}/{s}-*"} for s in splits],
            }
        ],
        "dataset_info": {
            "config_name": CONFIG,
            "features": [{"name": "text", "dtype": "string"}],
            "splits": [{"name": s, "num_examples": n, "num_bytes": 1} for s, n in splits.items()],
        },
    }
    (folder / CONFIG).mkdir(parents=True)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
    shards = {f"train-{n:05}-of-{len(train):05}": part for n, part in enumerate(train)}
    shards |= {"validation-00000-of-00001": rows(["Prototype filter"]), "test-00000-of-00001": [""]}
    for name, part in shards.items():
        pq.write_table(pa.table({"text": part}), folder / CONFIG / f"{name}.parquet")
    return folder


def build(tmp_path: Path, **changes) -> WikiText:
    return WikiText(**{**SETTINGS, "cache_dir": str(tmp_path / "cache"), **changes})


def test_articles_come_back_from_a_local_copy(tmp_path: Path) -> None:
    every = rows(list(ARTICLES))
    folder = repository(tmp_path / "copy", [every[:7], every[7:]])
    documents = build(tmp_path, path=str(folder)).load("train")
    assert documents["name"][:] == list(ARTICLES)
    assert "".join(documents["text"]) == "".join(row or "\n" for row in every[1:])
    for text, title in zip(documents["text"], ARTICLES, strict=True):
        assert text.startswith(f" = {title} = \n\n ")
    held_out = build(tmp_path, path=str(folder)).load("validation")
    assert held_out["name"][:] == ["Prototype filter"]


titles = st.lists(st.text("ab=é ", min_size=1).map(lambda t: f"x {t} y"), min_size=1, max_size=4)
bodies = st.text("ab =\n", max_size=30).map(lambda body: f" {body}.")


@given(titles=titles, data=st.data())
def test_no_line_is_lost(titles: list[str], data: st.DataObject) -> None:
    written = [
        f" = {title} = \n \n {data.draw(bodies)}\n \n".replace("\n =", "\n .") for title in titles
    ]
    lines = [f"{line}\n" for line in "".join(written).split("\n")[:-1]]
    read = list(articles([" \n", *lines]))
    assert [article["text"] for article in read] == written
    assert [article["name"] for article in read] == [title.strip() for title in titles]


def test_text_before_the_first_title_is_kept() -> None:
    read = list(articles(["Stray .\n", "", " = A = \n", "", " B .\n"]))
    assert [(a["name"], a["text"]) for a in read] == [
        ("", "Stray .\n\n"),
        ("A", " = A = \n\n B .\n"),
    ]


def test_changed_text_is_noticed(tmp_path: Path) -> None:
    folder = repository(tmp_path / "copy", [rows(["Homarus gammarus"])])
    corpus = build(tmp_path, path=str(folder))
    before, first = corpus.fingerprint("train"), corpus.load("train")["text"][0]
    file = next((folder / CONFIG).glob("train*"))
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    changed = [row.replace("Large", "Small") for row in rows(["Homarus gammarus"])]
    pq.write_table(pa.table({"text": changed}), file)
    os.utime(file, ns=times)
    assert corpus.fingerprint("train") != before
    assert corpus.load("train")["text"][0] == first.replace("Large", "Small")


def test_what_can_be_wrong_is_named(tmp_path: Path) -> None:
    every = rows(list(ARTICLES))
    whole = str(repository(tmp_path / "whole", [every]))
    with pytest.raises(UserError, match="copy is not whole"):
        short = str(repository(tmp_path / "short", [every], promised=len(every) + 1))
        build(tmp_path, path=short).load("train")
    with pytest.raises(UserError, match=r"data\.train=training: .* train, validation, test"):
        build(tmp_path, path=whole, train="training").load("train")
    with pytest.raises(UserError, match=r"data\.text_field=line: .* text"):
        build(tmp_path, path=whole, text_field="line").load("train")
    with pytest.raises(UserError, match=rf"data\.config=other: .*{CONFIG}"):
        build(tmp_path, path=whole, config="other").load("train")
    with pytest.raises(UserError, match="no line ' = Title = '"):
        build(tmp_path, path=whole).load("test")
    with pytest.raises(UserError, match=r"data\.revision=main"):
        build(tmp_path, revision="main")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """HF_HUB_OFFLINE=1 and an empty cache of the hub, which is returned."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_without_a_network_one_line_says_what_to_do(
    tmp_path: Path, offline: Path, capfd: pytest.CaptureFixture
) -> None:
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        build(tmp_path).load("train")
    assert time.monotonic() - start < 10
    assert "\n" not in str(error.value)
    for part in ("data=wikitext103", "data=shakespeare", "data=files", "data.train=", "data.path="):
        assert part in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_network_that_hangs_is_given_up(tmp_path: Path, offline: Path, monkeypatch) -> None:
    from huggingface_hub import HfApi

    def hang(self: HfApi, path: str, revision: str, timeout: float) -> None:
        assert 0 < timeout <= 5
        raise TimeoutError("timed out\nafter a while")

    monkeypatch.setattr(HfApi, "dataset_info", hang)
    with pytest.raises(UserError, match=r"TimeoutError: timed out after a while"):
        build(tmp_path).load("train")


def test_without_a_network_a_cached_copy_of_that_commit_is_used(
    tmp_path: Path, offline: Path, capfd: pytest.CaptureFixture
) -> None:
    snapshots = offline / "datasets--Salesforce--wikitext/snapshots"
    other = repository(snapshots / ("0" * 40), [rows(list(ARTICLES))])
    with pytest.raises(UserError, match="not in its cache"):
        build(tmp_path).load("train")
    other.rename(snapshots / SETTINGS["revision"])
    assert build(tmp_path).load("train")["name"][:] == list(ARTICLES)
    assert capfd.readouterr() == ("", "")


def test_fingerprint_of_a_commit_needs_no_network(tmp_path: Path) -> None:
    corpus = build(tmp_path)
    assert corpus.fingerprint("train") != corpus.fingerprint("test")
    assert corpus.fingerprint("train") != build(tmp_path, revision="0" * 40).fingerprint("train")


def test_words_are_defined_here_and_counted_as_blanks_part_them(tmp_path: Path) -> None:
    corpus = WikiText(**{**SETTINGS, "path": str(repository(tmp_path, [rows(list(ARTICLES))]))})
    corpus.cache_dir = str(tmp_path / "cache")
    assert {name for name, kind in CORPORA.items() if kind.words} == {"wikitext103"}
    tokenizer = prepare_tokenizer(corpus, Bytes())
    split = prepare_split(corpus, "train", tokenizer)
    texts = [document["text"] for document in corpus.documents("train")]
    assert count_words(split, tokenizer).tolist() == [len(text.split()) for text in texts]
