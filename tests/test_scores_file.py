"""Scores read from files, and what is said about those that cannot be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from davis.scores_file import checked, parse_json_lines, read_scores, scores_sha256

SCORES = np.array([1.5, -2.0, 0.1, 1.5, 3e-300])


def save_detector(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    """The two files of a saved detector, as far as scores are read from them."""
    packed = safetensors.numpy.save(tensors)
    (folder / "detector.safetensors").write_bytes(packed)
    (folder / "detector.json").write_text(json.dumps({"tensors_sha256": hashlib.sha256(packed).hexdigest()}))


def write(folder: Path, kind: str, column: str = "score") -> Path:
    """The scores in a file or folder of one kind, among other columns."""
    path = folder / f"scores.{kind}"
    if kind == "csv":
        rows = "".join(f"image {i},{float(score)!r}\n" for i, score in enumerate(SCORES))
        path.write_text(f"file,{column}\n{rows}\n", encoding="utf-8-sig")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"file": "a", column: float(score)}) + "\n\n" for score in SCORES))
    elif kind == "npz":
        np.savez(path, **{column: SCORES, "name": np.arange(9)})
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"file": list("abcde"), column: SCORES}), path)
    else:
        path.mkdir()
        save_detector(path, {"calibration.scores": SCORES})
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "npz", "parquet", "detector"])
def test_every_kind_gives_the_same_numbers(tmp_path: Path, kind: str) -> None:
    found = read_scores(write(tmp_path, kind))
    assert found.dtype == np.float64
    assert found.tolist() == SCORES.tolist()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "npz", "parquet"])
def test_column_by_name(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, "max + energy")
    assert read_scores(str(path), column="max + energy").tolist() == SCORES.tolist()
    with pytest.raises(ValueError, match=r"no column 'score'; there is .*'max \+ energy'"):
        read_scores(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "score\n", "there are no scores"),
        ("a.csv", "", "no column 'score'; there is nothing"),
        ("a.csv", "score\n1\nnan\n", "line 3: the score is nan"),
        ("a.csv", "score\n1\n-inf\n", "line 3: the score is -inf"),
        ("a.csv", "score\n1\nhigh\n", "line 3: the score must be a number, got 'high'"),
        ("a.csv", "file,score\na,1\nb\n", "line 3: the score must be a number, got ''"),
        ("a.jsonl", "", "there are no scores"),
        ("a.jsonl", '{"score": 1}\n{"score": NaN}\n', "line 2: the score is nan"),
        ("a.jsonl", '{"score": 1}\n\n{"score": null}\n', "line 3: the score must be a number, got null"),
        ("a.jsonl", '{"score": true}\n', "line 1: the score must be a number, got true"),
        ("a.jsonl", '{"score": 1}\n[1]\n', "line 2 must be an object"),
        ("a.jsonl", '{"score": 1\n', "line 1 is not JSON"),
        ("a.jsonl", '{"points": 1}\n', "line 1: no column 'score'; there is 'points'"),
        ("a.jsonl", f'{{"score": 1{"0" * 400}}}\n', "line 1: the score must be a number"),
        ("a.npz", "no archive", "not an npz file"),
        ("a.parquet", "no table", "not a parquet file"),
        ("a.txt", "score\n1\n", r"must end in one of \.csv"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_scores(tmp_path / name)


def test_bad_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, square=np.ones((2, 2)), words=np.array(["a"]), holes=np.array([1.0, np.nan, np.inf]))
    for column, error, message in [
        ("square", ValueError, "row of numbers"),
        ("words", TypeError, "must be numbers"),
        ("holes", ValueError, "2 of 3 scores are NaN or infinite, the first is number 2"),
    ]:
        with pytest.raises(error, match=message):
            read_scores(path, column=column)
    np.savez(path, score=np.array([object()]))  # a pickle, which is not opened
    with pytest.raises(ValueError, match="array 'score' cannot be read"):
        read_scores(path)


def test_bad_parquet_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"holes": [1.0, None], "words": ["a", "b"], "whole": [1, 2]}), path)
    with pytest.raises(ValueError, match="1 of 2 scores are missing"):
        read_scores(path, column="holes")
    with pytest.raises(TypeError, match="must be numbers, got string"):
        read_scores(path, column="words")
    assert read_scores(path, column="whole").tolist() == [1.0, 2.0]


def test_bad_places(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file of scores"):
        read_scores(tmp_path / "gone.csv")
    with pytest.raises(FileNotFoundError, match="holds no detector"):
        read_scores(tmp_path)
    save_detector(tmp_path, {"stages.1.clip": SCORES})
    with pytest.raises(ValueError, match="holds no calibration scores"):
        read_scores(tmp_path)
    (tmp_path / "detector.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match="sha256 differs"):
        read_scores(tmp_path)
    digest = hashlib.sha256(b"broken").hexdigest()
    (tmp_path / "detector.json").write_text(json.dumps({"tensors_sha256": digest}))
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        read_scores(tmp_path)


def test_json_lines_are_read_as_they_come() -> None:
    def lines() -> object:
        yield '{"score": 1}\n'
        yield '{"score": 2}\n'
        raise AssertionError("read ahead")

    scores = parse_json_lines(lines())  # type: ignore[arg-type]
    assert [next(scores), next(scores)] == [1.0, 2.0]


def test_fingerprint_is_of_the_set() -> None:
    assert scores_sha256([2.0, 1.0, 0.0]) == scores_sha256(np.array([-0.0, 1.0, 2.0]))
    assert scores_sha256([1.0, 2.0]) != scores_sha256([1.0, 2.0, 2.0])


def test_checked_leaves_its_input_alone() -> None:
    given = np.array([1, 2], dtype=np.int32)
    found = checked(given)
    found += 1
    assert given.tolist() == [1, 2]
