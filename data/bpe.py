"""Learns a byte-level BPE, as a process of its own: `python -P data/bpe.py <vocabulary>`.

`tokenizers` answers no signal while it trains, so whoever wants it to end kills this process. It reads texts from its
input, a JSON string a line and null after the last, and writes a `tokenizers` JSON. Nothing of this program is
imported, so that it starts at once.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LONGEST = 1024  # bytes: to merge within one word takes the square of its length


def texts() -> Iterator[str]:
    for line in sys.stdin.buffer:
        text = json.loads(line)
        if text is None:
            threading.Thread(target=leave_with_parent, daemon=True).start()
            return
        yield text
    os._exit(1)


def leave_with_parent() -> None:
    os.read(0, 1)  # ends when the one who waits for our answer does
    os._exit(1)


def main() -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # a terminal sends them to both: the parent decides
        signal.signal(number, signal.SIG_IGN)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    short = pre_tokenizers.FixedLength(LONGEST)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, short])
    trainer = trainers.BpeTrainer(
        vocab_size=int(sys.argv[1]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,  # on a terminal alone
    )
    learner.train_from_iterator(texts(), trainer)
    sys.stdout.write(learner.to_str())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
