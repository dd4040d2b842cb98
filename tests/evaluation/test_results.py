"""Rows are right at the edges, files are strict and whole, and evaluating again replaces only what
it should.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from errors import UserError
from evaluation import fields, protocols, results
from evaluation.protocols import Plan, Scores

HEADER = {
    "label": "rope--rope_factor-8.0",
    "position": "rope",
    "position_settings": {"base": 10000.0, "factor": 8.0},
    "trained_position": "rope",
    "trained_context": 128,
    "checkpoint_step": 500,
    "seed": 1,
    "parameters": 1000,
    "position_parameters": 10,
    "data": "shakespeare",
    "split": "test",
    "precision": "fp32",
    "bos": False,
    "data_hash": "d" * 64,
    "tokenizer_hash": "e" * 64,
    "torch": "2.13.0",
    "commit": "c",
}
OTHER = {
    "checkpoint_step": 501,
    "data_hash": "0" * 64,
    "tokenizer_hash": "0" * 64,
    "position_settings": {"base": 1.0},
    "split": "validation",
    "precision": "bf16",
    "bos": True,
}
CODE = {key: HEADER[key] for key in results.CODE}
DOCUMENTS = np.array([3000, 900, 40])


def scored(plan: Plan, nats: float | None = None, seed: int = 0) -> Scores:
    document, index, _ = plan.targets()
    rng = np.random.default_rng(seed)
    found = rng.gamma(2, 1, len(index)) if nats is None else np.full(len(index), nats)
    size = rng.integers(1, 5, len(index), dtype=np.int32)
    return Scores(found.astype(np.float32), document.astype(np.int32), index.astype(np.int32), size)


def entries(length: int, stride: int | None = None, seed: int = 0) -> list[results.Entry]:
    if stride is None:
        plan = protocols.non_overlapping(DOCUMENTS, length)
    else:
        plan = protocols.sliding(DOCUMENTS, length, stride=stride)
    return results.make_rows(plan, scored(plan, seed=seed))


def strict(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_row_is_a_token_weighted_mean():
    plan = protocols.sliding(DOCUMENTS, 64, stride=16)
    scores = scored(plan)
    ((row, kept),) = results.make_rows(plan, scores)
    assert (*row, *results.CODE) == fields.ROW  # saving adds which code it was
    nats = float(scores.nats.astype(np.float64).sum())
    assert row["tokens_scored"] == len(scores) == 2999 + 899 + 39
    assert row["nats"] == pytest.approx(nats, rel=1e-12)
    assert row["loss"] == pytest.approx(nats / len(scores), rel=1e-12)
    assert row["ppl"] == pytest.approx(math.exp(row["loss"]), rel=1e-12)
    assert row["bpb"] == pytest.approx(nats / math.log(2) / scores.bytes.sum(), rel=1e-12)
    assert row["ci95"][0] < row["loss"] < row["ci95"][1]
    assert (row["stride"], row["window"], row["bin"], row["supported"]) == (16, None, None, True)
    assert len(kept) == len(scores)


@pytest.mark.parametrize("nats", [1000.0, math.inf, math.nan])
def test_what_json_cannot_say_is_null(tmp_path, nats):
    plan = protocols.non_overlapping(DOCUMENTS, 64)
    path = results.save(tmp_path, HEADER, results.make_rows(plan, scored(plan, nats)))
    (row,) = strict(path)["rows"]
    assert row["ppl"] is None
    assert row["loss"] == (1000.0 if nats == 1000.0 else None)
    assert len(results.load(path).scores[0]) == row["tokens_scored"]


def test_an_unsupported_length_is_a_row_without_numbers(tmp_path):
    plan = protocols.same_tokens(DOCUMENTS, 256, longest=256, targets=64, block=32)
    path = results.save(tmp_path, HEADER, [*entries(64), *results.make_rows(plan, None)])
    row, short = (
        strict(path)["rows"][1],
        protocols.same_tokens(DOCUMENTS, 64, longest=256, targets=64, block=32),
    )
    assert row["supported"] is False and row["tokens_scored"] == 0
    assert all(row[key] is None for key in ("nats", "loss", "ppl", "bpb", "ci95"))
    # it was asked for the same tokens as the lengths that are supported
    assert row["target_set"] == results.make_rows(short, scored(short))[0][0]["target_set"]
    assert len(results.load(path).scores[1]) == 0


def test_target_sets_are_equal_across_lengths_and_differ_otherwise():
    def asked(plan: Plan) -> str:
        return results.make_rows(plan, scored(plan))[0][0]["target_set"]

    plans = [
        protocols.same_tokens(DOCUMENTS, length, longest=512, targets=512, block=32)
        for length in (32, 64, 128, 512)
    ]
    assert len({asked(plan) for plan in plans}) == 1
    other = protocols.same_tokens(DOCUMENTS, 64, longest=512, targets=480, block=32)
    assert asked(other) != asked(plans[0])


def test_bins_share_out_the_tokens():
    plan = protocols.per_position(DOCUMENTS, 256)
    scores = scored(plan)
    _, _, context = plan.targets()
    found = results.make_rows(plan, scores)
    assert [row["bin"] for row, _ in found][-2:] == ["64-127", "128-256"]
    assert sum(row["tokens_scored"] for row, _ in found) == len(scores)
    last = scores.nats[context >= 128].mean(dtype=np.float64)
    assert found[-1][0]["loss"] == pytest.approx(last)


def test_files_come_back_as_they_went(tmp_path):
    plan = replace(protocols.per_position(DOCUMENTS, 64), window=32)
    saved = [*entries(64), *results.make_rows(plan, scored(plan))]
    path = results.save(tmp_path / "eval", HEADER, saved)
    assert sorted(p.name for p in path.parent.iterdir()) == [
        f"{HEADER['label']}.json",
        f"{HEADER['label']}.npz",
    ]
    assert tuple(strict(path)) == (*fields.HEADER, "rows")
    found = results.load(path)
    assert found.header == HEADER and found.rows == [{**row, **CODE} for row, _ in saved]
    for (_, before), after in zip(saved, found.scores, strict=True):
        for name, kind in (("nats", "f4"), ("document", "i4"), ("index", "i4"), ("bytes", "i4")):
            assert getattr(after, name).dtype == kind
            assert np.array_equal(getattr(before, name), getattr(after, name))


def test_evaluating_again_replaces_equal_rows_and_keeps_the_others(tmp_path):
    results.save(tmp_path, HEADER, [*entries(64), *entries(128), *entries(128, stride=32)])
    again = entries(128, seed=1)
    path = results.save(tmp_path, {**HEADER, "commit": "later"}, [*again, *entries(32)])
    found = results.load(path)
    keys = [(row["protocol"], row["context_length"], row["stride"]) for row in found.rows]
    assert keys == [
        ("non_overlapping", 64, None),
        ("non_overlapping", 128, None),
        ("sliding", 128, 32),
        ("non_overlapping", 32, None),
    ]
    assert found.rows[1] == {**again[0][0], **CODE, "commit": "later"}
    assert found.rows[0] == {**entries(64)[0][0], **CODE}
    assert np.array_equal(found.scores[1].nats, again[0][1].nats)
    assert np.array_equal(found.scores[0].nats, entries(64)[0][1].nats)


def test_only_what_is_not_there_is_missing(tmp_path):
    def same_tokens(longest: int) -> Plan:
        return protocols.same_tokens(DOCUMENTS, 64, longest=longest, targets=64, block=32)

    per_position = protocols.per_position(DOCUMENTS, 64)
    plans = [same_tokens(64), per_position]
    path = tmp_path / f"{HEADER['label']}.json"
    assert results.missing(path, HEADER, plans) == plans
    results.save(tmp_path, HEADER, results.make_rows(per_position, scored(per_position)))
    assert results.missing(path, HEADER, plans) == plans[:1]
    results.save(tmp_path, HEADER, results.make_rows(plans[0], None))
    assert results.missing(path, HEADER, plans) == []
    other = same_tokens(512)  # the same row, but of other tokens
    assert results.missing(path, HEADER, [other, per_position]) == [other]
    for key in (*results.IDENTITY, "torch", "commit"):
        assert results.missing(path, {**HEADER, key: "other"}, plans) == plans
    found = results.load(path).rows
    expected = [found[-1], *found[:-1]]
    assert results.rows_of(found, plans) == expected


@pytest.mark.parametrize("key", results.IDENTITY)
def test_a_file_about_something_else_is_not_merged(tmp_path, key):
    results.save(tmp_path, HEADER, entries(64))
    path = results.save(tmp_path, {**HEADER, key: OTHER[key]}, entries(128))
    assert [row["context_length"] for row in results.load(path).rows] == [128]


def test_a_missing_or_damaged_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json"):
        results.load(tmp_path / "none.json")
    path = results.save(tmp_path, HEADER, entries(64))
    for victim in (path, path.with_suffix(".npz")):
        whole = victim.read_bytes()
        for size in range(0, len(whole) - 2, len(whole) // 40):
            victim.write_bytes(whole[:size])
            with pytest.raises(UserError, match="rope--rope_factor-8"):
                results.load(path)
        for spot in range(0, len(whole), len(whole) // 60):  # damage is named or harmless
            victim.write_bytes(whole[:spot] + b"\xff" + whole[spot + 1 :])
            try:
                results.load(path)
            except UserError as error:
                assert "rope--rope_factor-8" in str(error)
        victim.write_bytes(whole)
    path.with_suffix(".npz").unlink()
    with pytest.raises(UserError, match=r"factor-8\.0\.npz"):
        results.load(path)


def test_half_of_an_interrupted_write_is_not_believed(tmp_path):
    path = results.save(tmp_path, HEADER, entries(64))
    other = results.save(tmp_path / "other", HEADER, entries(64, seed=1))
    other.with_suffix(".npz").replace(path.with_suffix(".npz"))
    with pytest.raises(UserError, match="do not belong together"):
        results.load(path)
    assert results.load(results.save(tmp_path, HEADER, entries(128))).rows  # and is replaced


def test_rows_must_speak_of_the_tokens_that_are_stored(tmp_path):
    path = results.save(tmp_path, HEADER, entries(64))
    path.write_text(re.sub(r'("target_set": )"\w{4}', r'\1"0000', path.read_text()))
    with pytest.raises(UserError, match="do not belong together"):
        results.load(path)


def test_a_failing_write_leaves_the_old_files(tmp_path, monkeypatch):
    path = results.save(tmp_path, HEADER, entries(64))

    def fail(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(UserError, match="disk full"):
        results.save(tmp_path, HEADER, entries(128))
    assert [row["context_length"] for row in results.load(path).rows] == [64]
    assert len(list(tmp_path.iterdir())) == 2
