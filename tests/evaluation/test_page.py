"""The report's files: one page that asks for nothing, the same every time, from the runs named."""

from html.parser import HTMLParser

import pytest

from errors import UserError
from evaluation.collect import find_folders
from evaluation.page import render_html
from evaluation.report import write
from tests.evaluation.report_runs import flat, report, write_run, write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def compared(sweep):
    return report(sweep / "*" / "*")


class Reader(HTMLParser):
    """Collects what a page asks for, and checks that its tags are closed in order and ids are unique."""

    VOID = ("meta", "br", "link", "img", "hr", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open += [] if tag in self.VOID else [tag]
        self.note(dict(attrs))

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.note(dict(attrs))

    def note(self, attrs):
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [v for k, v in attrs.items() if k.split(":")[-1] in ("href", "src", "srcset")]
        self.links += [v for k, v in attrs.items() if v and "url(" in v]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def test_page_is_whole_and_asks_for_nothing(compared):
    text = render_html(compared.page)
    page = Reader(text)
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    own = {f"#{name}" for name in page.ids}
    for link in page.links:
        assert link in own or link.removeprefix("url(").removesuffix(")") in own, link
    assert "@import" not in text and "@font-face" not in text
    assert text.replace("http://www.w3.org/", "").count("http") == 0  # names of SVG, not addresses
    assert 'name="viewport"' in text and page.tags >= {"svg", "table", "h1"}


def test_names_from_files_cannot_break_the_page(tmp_path):
    config = {"position": {"name": "rope", "note": "<script>alert(1)</script> & $x^2$"}}
    write_run(tmp_path / "a", loss=flat, config=config)
    write_run(tmp_path / "b", loss=flat)
    page = Reader(render_html(report(tmp_path / "*").page))
    assert page.open == [] and "script" not in page.tags


def test_written_files_are_the_same_every_time(sweep, tmp_path):
    for name in ("one", "two"):
        page = write(report(sweep / "*" / "*"), tmp_path / name)
        assert page == tmp_path / name / "index.html"
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert files.keys() == {
        "index.html",
        "report.md",
        "runs.csv",
        "same_tokens.csv",
        "non_overlapping.csv",
        "gain-same_tokens.svg",
        "perplexity-same_tokens.svg",
        "perplexity-non_overlapping.svg",
        "training.svg",
    }
    text = files["report.md"].decode()
    assert "| rope | 3 |" in text and "(perplexity-same_tokens.svg)" in text
    assert "unsupported" in text and text.startswith("# How far 3 schemes reach")


def test_globs_skip_what_is_no_run_and_remark_on_what_waits(tmp_path):
    write_run(tmp_path / "done", loss=flat)
    write_run(tmp_path / "waiting", loss=flat, evaluated=False)
    (tmp_path / "notes").mkdir()
    folders, remarks = find_folders([str(tmp_path / "*"), str(tmp_path / "done")])
    assert folders == [tmp_path / "done"]
    assert remarks == [
        f"Left out: {tmp_path}/waiting has no results yet; type: python eval.py run={tmp_path}/waiting"
    ]


def test_names_that_lead_nowhere_are_one_line(tmp_path):
    write_run(tmp_path / "waiting", loss=flat, evaluated=False)
    (tmp_path / "notes").mkdir()
    for pattern, said in {
        tmp_path / "waiting": f"no results yet; type: python eval.py run={tmp_path}/waiting",
        tmp_path / "w*": "no results yet; type: python eval.py run=",
        tmp_path / "notes": "notes is no run folder",
        tmp_path / "absent": "absent is no run folder",
        tmp_path / "x*": "matches no run folder",
    }.items():
        with pytest.raises(UserError) as error:
            report(pattern)
        assert said in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="name some runs"):
        report()


def test_a_folder_that_hydra_cannot_spell_is_quoted(tmp_path):
    write_run(tmp_path / "a b", loss=flat, evaluated=False)
    with pytest.raises(UserError) as error:
        report(tmp_path / "a b")
    assert str(error.value).endswith(f"""python eval.py 'run="{tmp_path}/a b"'""")
