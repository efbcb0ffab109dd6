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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from qk_sniffer.reachable import require_reachable
from qk_sniffer.text_settings import DatasetSettings
from qk_sniffer.texts.text_files import TextFiles
from qk_toolkit.errors import ConfigError, SettingError
from qk_toolkit.files import user_path
from qk_toolkit.raised_in import is_our_bug

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


@dataclass(frozen=True)
class Texts:
    """The texts of a dataset, in its order."""

    rows: Any  # datasets.Dataset or IterableDataset
    settings: DatasetSettings
    file_names: Sequence[str] | None  # the ids of text files; None for other datasets
    total: int | None  # None if the length of a streamed dataset is unknown

    def __iter__(self) -> Iterator[Text]:
        wanted = islice(self.rows, self.settings.max_samples)
        for number, row in enumerate(_readable_rows(wanted, self.settings.path)):
            if number > _MOST_EXAMPLES:
                raise SettingError(
                    "dataset.path", f"more than {_MOST_EXAMPLES:,} texts; set dataset.max_samples"
                )
            yield Text(number, self._original_id(number, row), self._text(number, row))

    @property
    def has_index(self) -> bool:
        """Whether texts can be read in any order; a streamed dataset is read from its start."""
        return not self.settings.streaming

    def between(self, start: int, end: int) -> list[Text]:
        """The texts with these numbers, of a dataset that is not streamed."""
        with _readable(self.settings.path):
            columns = self.rows[start:end]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [
            Text(number, self._original_id(number, row), self._text(number, row))
            for number, row in enumerate(rows, start)
        ]

    def sizes(self) -> list[int]:
        """The bytes of every text, of a dataset that is not streamed."""
        with _readable(self.settings.path):
            if isinstance(self.rows, TextFiles):
                return self.rows.sizes()[: self.total]
            return self._sizes()

    def _sizes(self) -> list[int]:
        column = self.settings.text_column
        rows = self.rows.select_columns([column]).with_format("arrow")
        sizes: list[int] = []
        for start in range(0, self.total or 0, _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, self.total or 0)
            values = rows[start:end][column]
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                return [0] * (self.total or 0)  # `_text` refuses such a column
            sizes += pc.fill_null(pc.binary_length(values), 0).to_pylist()
        return sizes

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

    path, names = user_path(settings.path), None
    datasets.logging.set_verbosity(logging.CRITICAL)  # errors are raised below, in one line
    with _readable(settings.path):
        if path.exists():
            _refuse_hub_settings(settings)
            files, reader = local_files(path)
            rows = _local_rows(files, reader, settings)
            if reader == "text":
                base = path if path.is_dir() else path.parent
                names = [file.relative_to(base).as_posix() for file in files]
        else:
            _refuse_a_missing_path(settings.path)
            made = Path(datasets.config.HF_DATASETS_CACHE) / settings.path.replace("/", "___")
            if not made.exists():
                require_reachable("dataset.path", settings.path, "dataset")
            rows = datasets.load_dataset(
                settings.path,
                settings.name,
                revision=settings.revision,
                split=settings.split,
                streaming=settings.streaming,
            )
        _check_columns(rows, settings)
    total = None if settings.streaming else len(rows)
    if names is not None:
        total = len(names)
    if total is not None and settings.max_samples is not None:
        total = min(total, settings.max_samples)
    return Texts(rows, settings, names, total)


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
    """The files with texts in a folder, or one file, and what reads them."""
    files = [root]
    if root.is_dir():
        files = sorted(
            path
            for path in root.rglob("*")
            if path.is_file()
            and _reader(path) is not None
            and not any(part.startswith(".") for part in path.relative_to(root).parts)
        )
    if len({_reader(path) for path in files}) > 1:  # the dataset card is not a text
        files = [path for path in files if path.name.lower() != "readme.md"]
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
