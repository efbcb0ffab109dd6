"""Rows of a dataset → texts → batches of tokens.

Texts come through `datasets`: from the Hub, or from local files. A text's small number, its
`example_id`, is its place in the dataset, so it depends on nothing else; the dataset's own id is
kept beside it.
"""

from __future__ import annotations

import glob
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qk_sniffer.config import DatasetSettings
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import user_path

_MOST_EXAMPLES = 2**31 - 1
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
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Text:
    """One text, its number and its id in the dataset."""

    example_id: int
    original_id: object
    text: str

    @property
    def digest(self) -> str:
        """A short hash, to notice a text that changed between two runs."""
        content = self.text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=8).hexdigest()


@dataclass(frozen=True)
class Texts:
    """The texts of a dataset, in its order."""

    rows: Any  # datasets.Dataset or IterableDataset
    settings: DatasetSettings
    file_names: Sequence[str] | None  # of a folder of text files: their ids
    total: int | None  # None while streaming a dataset of unknown length

    def __iter__(self) -> Iterator[Text]:
        wanted = islice(self.rows, self.settings.max_samples)
        for number, row in enumerate(_readable_rows(wanted, self.settings.path)):
            if number > _MOST_EXAMPLES:
                raise ConfigError(
                    f"dataset.path: more than {_MOST_EXAMPLES:,} texts; set max_samples"
                )
            yield Text(number, self._original_id(number, row), self._text(number, row))

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
                f"in row {number}, expected text"
            )
        return value


def open_texts(settings: DatasetSettings) -> Texts:
    """Find the dataset and check that it has the columns asked for."""
    import datasets

    place = user_path(settings.path)
    names = None
    datasets.logging.set_verbosity(logging.CRITICAL)  # every error is told in one line here
    try:
        if place.exists():
            _refuse_hub_settings(settings)
            files, reader = _local_files(place)
            options = _reader_options(reader, settings.text_column)
            rows = datasets.load_dataset(
                "csv" if reader == "tsv" else reader,
                data_files=[glob.escape(str(file)) for file in files],
                split="train",
                streaming=settings.streaming,
                **options,
            )
            if reader == "text":
                base = place if place.is_dir() else place.parent
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
    except ConfigError:
        raise
    except Exception as error:
        raise _unreadable(settings.path, error) from error
    total = None if settings.streaming else len(rows)
    if names is not None:
        total = len(names)
    if total is not None and settings.max_samples is not None:
        total = min(total, settings.max_samples)
    return Texts(rows, settings, names, total)


def batches(texts: Iterable[Text], size: int) -> Iterator[tuple[int, list[Text]]]:
    """(number, texts) of batches of `size`: always the same texts together, however often one
    starts anew.
    """
    source = iter(texts)
    number = 0
    while group := list(islice(source, size)):
        yield number, group
        number += 1


def tokenize(
    tokenizer: Any, text: str, max_length: int | None, add_special_tokens: bool
) -> list[int]:
    """Token ids of a text, cut to `max_length`; an empty text has none."""
    if not text:
        return []
    if tokenizer.truncation_side != "right":  # positions count from the beginning
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


def _local_files(place: Path) -> tuple[list[Path], str]:
    files = [place]
    if place.is_dir():
        files = sorted(
            path
            for path in place.rglob("*")
            if path.is_file()
            and _reader(path) is not None
            and not any(part.startswith(".") for part in path.relative_to(place).parts)
        )
    if len({_reader(path) for path in files}) > 1:  # a card beside tables is none of the texts
        files = [path for path in files if path.name.lower() != "readme.md"]
    readers = {_reader(path) for path in files}
    if not files or None in readers:
        raise ConfigError(
            f"dataset.path: {place}: holds no texts; give .txt, .md, .jsonl, .json, .csv, .tsv or "
            ".parquet files"
        )
    if len(readers) > 1:
        found = ", ".join(sorted(str(reader) for reader in readers))
        raise ConfigError(
            f"dataset.path: {place}: holds files of several kinds ({found}); give a folder of one"
        )
    return files, str(readers.pop())


def _reader_options(reader: str, text_column: str) -> dict[str, Any]:
    """How `datasets` shall read files of a kind."""
    if reader == "text":
        return {"sample_by": "document"}
    if reader not in ("csv", "tsv"):
        return {}
    separator = {"tsv": {"sep": "\t"}}.get(reader, {})
    as_they_stand = {"converters": {text_column: str}, "keep_default_na": False}  # "12" and "NA"
    return {**separator, **as_they_stand}


def _refuse_hub_settings(settings: DatasetSettings) -> None:
    for field, usual in (("name", None), ("revision", None), ("split", "train")):
        given = getattr(settings, field)
        if given != usual:
            raise ConfigError(
                f"dataset.{field}: {given!r} given, but {settings.path} is no dataset of the Hub; "
                "leave it out"
            )


def _reader(path: Path) -> str | None:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSED]
    return _READERS.get(suffixes[-1].lower()) if suffixes else None


def _refuse_a_missing_path(path: str) -> None:
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local or _reader(Path(path)) is not None:
        raise ConfigError(f"dataset.path: {path}: does not exist")


def _check_columns(rows: Any, settings: DatasetSettings) -> None:
    columns = rows.column_names
    if columns is None:
        columns = list(next(iter(rows), {}))
    for field in ("text_column", "id_column"):
        wanted = getattr(settings, field)
        if wanted is not None and wanted not in columns:
            raise ConfigError(
                f"dataset.{field}: {settings.path} has no column {wanted!r} "
                f"(columns: {', '.join(columns)})"
            )


def _readable_rows(rows: Iterable[Any], path: str) -> Iterator[dict[str, Any]]:
    source = iter(rows)
    while True:
        try:
            row = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise _unreadable(path, error) from error
        yield row


def _unreadable(path: str, error: BaseException) -> ConfigError:
    cause = error.__cause__ or error
    if isinstance(cause, StopIteration):  # how a reader of tables says that there are no rows
        return ConfigError(f"dataset.path: {path}: holds no texts")
    reason = " ".join(str(cause).split())[:300] or type(cause).__name__
    return ConfigError(f"dataset.path: {path}: cannot be read: {reason}")
