"""The README is true: its commands compose, its recipe works as printed, its keys and schemes are those there are."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, SCHEMES, SMALL, command

from docs import readme

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.S | re.M)
COMMANDS = sorted({
    line.partition("  #")[0].strip()
    for block in BLOCKS
    for line in block.splitlines()
    if re.match(r"(\.venv/bin/)?python \w+\.py", line)
})  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_compose(line, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)[1:]
    if "--help" not in arguments:
        arguments = [a for a in arguments if a != "-m" and "," not in a.split("=")[-1].strip("[]")]
        arguments += ["--cfg", "job"]
    assert command(name.removesuffix(".py"), *arguments) == 0
    assert capfd.readouterr().out


def test_every_scheme_is_named():
    row = next(line for line in README.splitlines() if line.startswith("| `position` |"))
    assert set(re.findall(r"`(\w+)`", row)) - {"position"} == set(SCHEMES)


def test_every_file_named_in_the_tree_exists():
    for name in re.findall(
        r"`((?:model|data|training|evaluation|configs)/[\w/]+(?:\.py)?)`", README
    ):
        path = ROOT / name
        recipe = name.startswith(("model/position/root", "configs/position/root"))
        assert recipe or path.exists() or path.with_suffix(".py").exists(), name


def test_the_recipe_for_a_scheme_works_as_printed(tmp_path, corpus):
    files = dict(re.findall(r"<!-- recipe:(\S+) -->\n\s*```\w+\n(.*?)^\s*```", README, re.S | re.M))
    assert len(files) == 2
    skip = shutil.ignore_patterns(
        ".*", "__pycache__", "outputs", "cache", "report", "docs", "tests"
    )
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=skip)
    for name, text in files.items():
        (copy / name).write_text(re.sub(r"^   ", "", text, flags=re.M))
    table = copy / "model/position/__init__.py"
    row = '"root": Root,'
    assert f"`{row}`" in README
    text = table.read_text().replace("] = {\n", "] = {\n    " + row + "\n", 1)
    table.write_text(
        text.replace("\nfrom model", "\nfrom model.position.root import Root\nfrom model", 1)
    )
    for script, *arguments in (
        ["train.py", "position=root", *SMALL, *corpus],
        ["eval.py", "eval.targets=256", "eval.multiples=[1,8]"],
    ):
        done = subprocess.run(
            [sys.executable, script, *arguments], cwd=copy, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert list(copy.glob("outputs/root/*/eval/root.json"))


@pytest.mark.parametrize("page", readme.PAGES)
def test_the_tables_are_those_of_the_committed_results(page):
    assert readme.filled(page) == (ROOT / page).read_text(), "python -m docs.readme"
