"""Read the texts of a dataset, and tokenize them.

Text files are read one by one, all else with `datasets`, from the Hub or from local files. The
`example_id` of a text is its row number in the dataset. The id of the text in the dataset is stored
too.
"""

from __future__ import annotations

import glob
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from qk_dump.heads import MOST_EXAMPLES
from qk_sniffer.text_settings import DatasetSettings
from qk_sniffer.texts.distinct import DistinctTexts
from qk_toolkit.errors import ConfigError, SettingError
from qk_toolkit.files import user_path
from qk_toolkit.raised_in import is_our_bug

_READERS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_ROWS_AT_ONCE = 1_000  # when only the sizes of texts are read
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Text:
    """One text, its number and its id in the dataset."""

    example_id: int
    original_id: object
    text: str

    @property
    def digest(self) -> str:
        """A short hash, to detect a text that changed between two runs."""
        content = self.text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=8).hexdigest()


class TextFiles:
    """A row per text file, as `datasets` gives it. A file is opened when its row is needed.

    `datasets` opens every file of a folder first, and its errors do not name the file.
    """

    column_names = ("text",)

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for file in self._files:
            yield {"text": _text_of(file)}

    def __getitem__(self, rows: Sequence[int]) -> dict[str, list[str]]:
        return {"text": [_text_of(self._files[row]) for row in rows]}

    def sizes(self) -> list[int]:
        """The bytes of every file."""
        return [file.stat().st_size for file in self._files]


def _text_of(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SettingError(
            "dataset.path", f"{file}: is not a text in UTF-8; remove it or convert it"
        )
    return text


@dataclass(frozen=True)
class Texts:
    """The texts of a dataset, in its order."""

    rows: Any  # datasets.Dataset or IterableDataset
    settings: DatasetSettings
    file_names: Sequence[str] | None  # the ids of text files; None for other datasets
    kept: Sequence[int] | None  # the row numbers of the texts; None if not known (streaming)
    distinct: DistinctTexts

    def __iter__(self) -> Iterator[Text]:
        if self.kept is not None:
            for number in range(len(self.kept)):
                yield from self.between(number, number + 1)
            return
        latest: dict[str, Any] = {}

        def texts() -> Iterator[str]:
            for row, values in enumerate(_readable_rows(self.rows, self.settings.path)):
                latest.update(values)
                yield self._text(row, values)

        rows = islice(self.distinct.rows_of(texts()), self.settings.max_samples)
        for number, row in enumerate(rows):
            if number >= MOST_EXAMPLES:
                raise SettingError(
                    "dataset.path", f"more than {MOST_EXAMPLES:,} texts; set dataset.max_samples"
                )
            yield Text(number, self._original_id(row, latest), self._text(row, latest))

    @property
    def total(self) -> int | None:
        """The number of texts; None if it is not known."""
        return None if self.kept is None else len(self.kept)

    @property
    def notes(self) -> list[str]:
        """What of the dataset is left out. Of a streamed dataset, what was read so far."""
        found = list(self.distinct.notes(self.file_names))
        if self.kept is not None and len(self.kept) < self.distinct.total:
            found.append(f"{len(self.kept):,} of {self.distinct.total:,} texts, at even steps")
        return found

    @property
    def has_index(self) -> bool:
        """Whether texts can be read in any order; a streamed dataset is read from its start."""
        return not self.settings.streaming

    def between(self, start: int, end: int) -> list[Text]:
        """The texts with these numbers, of a dataset that is not streamed."""
        assert self.kept is not None
        places = list(self.kept[start:end])
        with _readable(self.settings.path):
            columns = self.rows[places]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [
            Text(number, self._original_id(place, row), self._text(place, row))
            for number, place, row in zip(range(start, end), places, rows, strict=False)
        ]

    def sizes(self) -> list[int]:
        """The bytes of every text, of a dataset that is not streamed."""
        assert self.kept is not None
        with _readable(self.settings.path):
            if isinstance(self.rows, TextFiles):
                sizes = self.rows.sizes()
                return [sizes[row] for row in self.kept]
            column = self.settings.text_column
            rows = self.rows.select_columns([column]).with_format("arrow")
            found: list[int] = []
            for start in range(0, len(self.kept), _ROWS_AT_ONCE):
                values = rows[list(self.kept[start : start + _ROWS_AT_ONCE])][column]
                found += pc.binary_length(values).to_pylist()
            return found

    def with_distinct_rows(self) -> Texts:
        """The same texts, with the row numbers of those that are not empty and no copies."""
        rows = self.distinct.rows_of(self._all_texts())
        kept = list(islice(rows, self.settings.max_samples))
        self.distinct.total = len(kept)
        number = min(len(kept), self.settings.spread_samples or len(kept))
        return replace(self, kept=[kept[place * len(kept) // number] for place in range(number)])

    def _all_texts(self) -> Iterator[str]:
        column = self.settings.text_column
        if isinstance(self.rows, TextFiles):
            yield from (row["text"] for row in self.rows)
            return
        rows, number = self.rows.select_columns([column]).with_format("arrow"), 0
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            with _readable(self.settings.path):
                values = rows[start : start + _ROWS_AT_ONCE][column].to_pylist()
            for value in values:
                yield self._text(number, {column: value})
                number += 1

    def _original_id(self, number: int, row: dict[str, Any]) -> object:
        if self.settings.id_column is not None:
            return row[self.settings.id_column]
        return self.file_names[number] if self.file_names is not None else number

    def _text(self, number: int, row: dict[str, Any]) -> str:
        value = row[self.settings.text_column]
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(
                f"dataset.text_column: {self.settings.text_column!r} holds {type(value).__name__} "
                f"in row {number}, expected text; choose another column"
            )
        return value


def open_texts(settings: DatasetSettings) -> Texts:
    """Open the dataset and check its columns."""
    import datasets

    path, names, distinct = user_path(settings.path), None, DistinctTexts()
    datasets.logging.set_verbosity(logging.CRITICAL)  # errors are raised below, in one line
    with _readable(settings.path):
        if path.exists():
            _refuse_hub_settings(settings)
            files, reader = local_files(path)
            distinct.cards += _cards(path)
            rows = _local_rows(files, reader, settings)
            if reader == "text":
                base = path if path.is_dir() else path.parent
                names = [file.relative_to(base).as_posix() for file in files]
        else:
            _refuse_a_missing_path(settings.path)
            rows = datasets.load_dataset(
                settings.path,
                settings.name,
                revision=settings.revision,
                split=settings.split,
                streaming=settings.streaming,
            )
        _check_columns(rows, settings)
    texts = Texts(rows, settings, names, None, distinct)
    if settings.streaming and not isinstance(rows, TextFiles):
        return texts
    return texts.with_distinct_rows()


def _local_rows(files: Sequence[Path], reader: str, settings: DatasetSettings) -> Any:
    if reader == "text" and not any(file.suffix in _COMPRESSED for file in files):
        return TextFiles(files)
    import datasets

    return datasets.load_dataset(
        "csv" if reader == "tsv" else reader,
        data_files=[glob.escape(str(file)) for file in files],
        split="train",
        streaming=settings.streaming,
        **_reader_options(reader, settings.text_column),
    )


def tokenize(
    tokenizer: Any, text: str, max_length: int | None, add_special_tokens: bool
) -> list[int]:
    """Token ids of a text, cut to `max_length`; an empty text has none."""
    if not text:
        return []
    if tokenizer.truncation_side != "right":  # positions count from the start of the text
        tokenizer.truncation_side = "right"
    ids: list[int] = tokenizer(
        text,
        truncation=max_length is not None,
        max_length=max_length,
        add_special_tokens=add_special_tokens,
        return_attention_mask=False,
        verbose=False,
    )["input_ids"]
    return ids


def local_files(root: Path) -> tuple[list[Path], str]:
    """The files with texts in a folder, or one file, and what reads them.

    A README of a folder describes the texts and is none of them.
    """
    files = [root]
    if root.is_dir():
        files = [path for path in _readable_files(root) if not _is_card(path)]
    readers = {_reader(path) for path in files}
    if not files or None in readers:
        raise SettingError(
            "dataset.path",
            f"{root}: holds no texts; give .txt, .md, .jsonl, .json, .csv, .tsv or .parquet files",
        )
    if len(readers) > 1:
        found = ", ".join(sorted(str(reader) for reader in readers))
        raise SettingError(
            "dataset.path",
            f"{root}: holds files of several formats ({found}); give a folder with one format",
        )
    return files, str(readers.pop())


def _readable_files(root: Path) -> list[Path]:
    """The files of a folder whose names say that they hold texts; hidden ones are left out."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and _reader(path) is not None
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _is_card(path: Path) -> bool:
    return path.name.lower().partition(".")[0] == "readme"


def _cards(root: Path) -> list[str]:
    """The README files of a folder."""
    if not root.is_dir():
        return []
    return [p.relative_to(root).as_posix() for p in _readable_files(root) if _is_card(p)]


def _reader_options(reader: str, text_column: str) -> dict[str, Any]:
    """Options of `datasets` for a file format."""
    if reader == "text":
        return {"sample_by": "document"}
    if reader not in ("csv", "tsv"):
        return {}
    separator = {"tsv": {"sep": "\t"}}.get(reader, {})
    keep_text = {"converters": {text_column: str}, "keep_default_na": False}  # also "12" and "NA"
    return {**separator, **keep_text}


def _refuse_hub_settings(settings: DatasetSettings) -> None:
    for field, default in (("name", None), ("revision", None), ("split", "train")):
        value = getattr(settings, field)
        if value != default:
            raise ConfigError(
                f"dataset.{field}: {value!r} given, but {settings.path} is a local path and not a "
                f"dataset of the Hub; leave dataset.{field} out"
            )


def _reader(path: Path) -> str | None:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    return _READERS.get(suffixes[-1].lower()) if suffixes else None


def _refuse_a_missing_path(path: str) -> None:
    looks_local = path.startswith((".", "/", "~")) or path.endswith("/") or path.count("/") > 1
    if looks_local or _reader(Path(path)) is not None:
        raise SettingError("dataset.path", f"{path}: does not exist")


def _check_columns(rows: Any, settings: DatasetSettings) -> None:
    columns = rows.column_names
    if columns is None:
        columns = list(next(iter(rows), {}))
    for field in ("text_column", "id_column"):
        wanted = getattr(settings, field)
        if wanted is not None and wanted not in columns:
            raise ConfigError(
                f"dataset.{field}: {settings.path} has no column {wanted!r}; its columns are "
                f"{', '.join(columns)}"
            )


def _readable_rows(rows: Iterable[Any], path: str) -> Iterator[dict[str, Any]]:
    source = iter(rows)
    while True:
        with _readable(path):
            row = next(source, None)
        if row is None:
            return
        yield row


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turn an error of `datasets`, whose readers raise errors of all types, into one line.

    A bug of this program is raised as it is.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the readers of `datasets` raise errors of all types
        if is_our_bug(error):
            raise
        cause = error.__cause__ or error
        if isinstance(cause, StopIteration):  # a file without rows
            raise SettingError("dataset.path", f"{path}: holds no texts") from error
        reason = " ".join(str(cause).split())[:300] or type(cause).__name__
        if not user_path(path).exists():
            reason += "; it is not a file or folder here, so it was looked for on the Hub"
        raise SettingError("dataset.path", f"{path}: cannot be read: {reason}") from error
