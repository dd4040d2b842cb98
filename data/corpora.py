"""The table of corpora: what `data=<name>` may name.

A corpus is one class in a file of its own (`corpus.py` says what it must answer), one row here, and
one YAML in `configs/data` whose keys are the fields of the class.
"""

from data.corpus import SPLITS, Corpus
from data.files import Files
from data.shakespeare import Shakespeare
from data.wikitext import WikiText

__all__ = ["CORPORA", "SPLITS", "Corpus"]

CORPORA: dict[str, type[Corpus]] = {
    "shakespeare": Shakespeare,
    "wikitext103": WikiText,
    "files": Files,
}
