"""Convert GGUF files to ordinary checkpoints.

Converting weights and tokenizer takes minutes, so the checkpoint is stored in a cache folder:
`$ATTENTION_PLASTICITY_CACHE`, else `~/.cache/attention-plasticity`.

The name of a model in the header of its GGUF file. The library `gguf` reads whole headers, with the
vocabulary, which takes seconds. The fields that name the model are at the beginning.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import torch
import transformers
from filelock import FileLock

from qk_sniffer.config import ModelSettings
from qk_sniffer.model.files import Note, files_hash
from qk_toolkit.cache import cache_folder
from qk_toolkit.errors import ConfigError
from qk_toolkit.files import staged_folder, user_path

_CONVERSION_VERSION = 1  # a change of this number makes cached checkpoints unused
_DEFAULT_DTYPE = "float32"  # wide enough for every quantised weight
_MINUTES_PER_GB = 3  # measured on a slow core: 160 s for Q4_1, 80 s for Q8_0, 30 s for F16
_MINUTES_AT_LEAST = 1  # for the tokenizer
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of other types
_MOST_BYTES = 1 << 20  # of a string
_MOST_STRINGS = 1_000  # of a list, such as tags; a vocabulary is longer, and nothing follows it
_MOST_CHARACTERS = 100  # of a name


def gguf_path(settings: ModelSettings) -> Path:
    """The GGUF file of the settings; it is downloaded if the model is on the Hub."""
    folder, file = user_path(settings.name), str(settings.gguf_file)
    if folder.is_dir():
        if not (folder / file).is_file():
            raise ConfigError(f"model.gguf_file: {folder / file}: does not exist")
        return folder / file
    from transformers.utils.hub import cached_file

    return Path(str(cached_file(settings.name, file, revision=settings.revision)))


def converted_model(
    settings: ModelSettings, note: Note = lambda text: None, *, convert_now: bool = True
) -> ModelSettings:
    """The settings, changed to load the converted checkpoint of the GGUF file.

    They are returned unchanged if there is no GGUF file, if the cache cannot be written, and, with
    `convert_now=False`, if the file was not converted before.
    """
    if settings.gguf_file is None:
        return settings
    source = gguf_path(settings)
    dtype = _DEFAULT_DTYPE if settings.dtype == "auto" else settings.dtype
    target = cache_folder() / "gguf" / _cache_name(settings, source, dtype, note)
    if not (target / "config.json").is_file():
        if not convert_now:
            return settings
        note(
            f"{source.name}: converting to {dtype}, which may take {conversion_time(source)}; this "
            f"is done once, later runs reuse {target}"
        )
        try:
            _convert_once(source, target, dtype)
        except OSError as error:
            reason = error.strerror or error
            note(f"{target}: cannot be written ({reason}); every run converts the file again")
            return settings
    return settings.model_copy(update={"name": str(target), "gguf_file": None, "revision": None})


def conversion_time(source: Path) -> str:
    """How long the conversion of a file may take, for messages."""
    size = source.stat().st_size / 1e9
    return f"up to {_MINUTES_AT_LEAST + ceil(size * _MINUTES_PER_GB)} minutes"


def _cache_name(settings: ModelSettings, source: Path, dtype: str, note: Note) -> str:
    """The folder name for a file's content, the precision and the version of the converter."""
    if user_path(settings.name).is_dir():
        content = files_hash(source.parent, source.name, note)
    else:
        content = source.resolve().name  # in the Hub's cache this is the hash of the file
    return f"{content}-{dtype}-transformers-{transformers.__version__}-{_CONVERSION_VERSION}"


def _convert_once(source: Path, target: Path, dtype: str) -> None:
    """Convert into the cache; if several processes do so, one converts and the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if not (target / "config.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            with staged_folder(target) as draft:
                convert_gguf(source, draft, dtype)


def convert_gguf(source: Path, target: Path, dtype: str = _DEFAULT_DTYPE) -> tuple[Any, Any]:
    """Write the checkpoint and the tokenizer of a GGUF file; return the model and the tokenizer."""
    auto: Any = transformers.AutoModelForCausalLM
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    add_special_tokens_of(source, tokenizer)
    packed = auto.from_pretrained(source.parent, gguf_file=source.name, dtype=getattr(torch, dtype))
    config = packed.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the checkpoint is not quantised
    with torch.device("meta"):
        model = auto.from_config(config, dtype=getattr(torch, dtype))
    model.load_state_dict(packed.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return packed, tokenizer


def add_special_tokens_of(source: Path, tokenizer: Any) -> None:
    """Let the tokenizer add BOS and EOS as the header of the GGUF file specifies.

    The converter of transformers ignores these fields. Some releases also ignore the token ids.
    """
    import gguf

    reader = gguf.GGUFReader(source)
    flags = {name: _header_field(reader, f"add_{name}_token") for name in ("bos", "eos")}
    for name, flag in flags.items():
        number = _header_field(reader, f"{name}_token_id")
        if number is not None and number != getattr(tokenizer, f"{name}_token_id"):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
        if flag is not None:
            setattr(tokenizer, f"_add_{name}_token", bool(flag))  # as transformers' setters do
    if any(flag is not None for flag in flags.values()):
        tokenizer.update_post_processor()


def _header_field(reader: Any, name: str) -> int | None:
    """A number in the tokenizer fields of a GGUF header; None if it is missing."""
    field = reader.get_field(f"tokenizer.ggml.{name}")
    return None if field is None else int(field.parts[field.data[0]][0])


def model_title(path: Path) -> str:
    """The name of the model: `general.name`, else basename and size, else the name of the file."""
    fields = _names(path)
    if "name" in fields:
        return fields["name"]
    if "basename" in fields:
        return f"{fields['basename']} {fields.get('size_label', '')}".rstrip()
    return path.stem


def _names(path: Path) -> dict[str, str]:
    """The texts among the fields `general.…`; what cannot be read is left out."""
    found = {}
    try:
        with path.open("rb") as file:
            for key, text in _strings(file):
                section, _, name = key.partition(".")
                text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
                if section == "general" and any(map(str.isalnum, text)):
                    found[name] = text[:_MOST_CHARACTERS]
    except (OSError, ValueError, OverflowError, struct.error):
        pass  # loading the model reports damaged files
    return found


def _strings(file: BinaryIO) -> Iterator[tuple[str, str]]:
    """Key and text of every field that is a text, until a long list."""
    if file.read(4) != _MAGIC or _number(file, "I") not in _VERSIONS:
        return
    _number(file, "Q")  # tensors
    for _ in range(_number(file, "Q")):
        key, kind = _text(file), _number(file, "I")
        if kind == _STRING:
            yield key, _text(file)
            continue
        number = 1
        if kind == _ARRAY:
            kind, number = _number(file, "I"), _number(file, "Q")
        if kind == _STRING and number <= _MOST_STRINGS:
            for _ in range(number):
                _text(file)
        elif kind in _SIZES:
            file.seek(number * _SIZES[kind], 1)
        else:
            return


def _number(file: BinaryIO, form: str) -> int:
    return int(struct.unpack(f"<{form}", file.read(struct.calcsize(form)))[0])


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > _MOST_BYTES:
        raise ValueError("the text is too long")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("the file is truncated")
    return data.decode("utf-8", "replace")
