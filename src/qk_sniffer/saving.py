"""What a tap heard, written as a dump."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.errors import ConfigError
from qk_dump.examples import Example, write_examples
from qk_dump.files import user_path, write_text
from qk_dump.layout import parse_head
from qk_dump.manifest import MANIFEST_NAME, write_manifest
from qk_dump.writer import write_head
from qk_sniffer.description import capture_manifest
from qk_sniffer.model_layout import text_config
from qk_sniffer.storing import check_finite

if TYPE_CHECKING:
    import os

    from qk_sniffer.tapping import Tap


def save_tap(tap: Tap, folder: str | os.PathLike[str]) -> Path:
    """Write every head's rows, `examples.parquet`, the card and `dump.json`, which comes last."""
    place = user_path(folder)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place}: is a file, not a folder")
    if place.is_dir() and any(
        parse_head(entry.name) or entry.name == MANIFEST_NAME for entry in place.iterdir()
    ):
        raise ConfigError(f"{place}: holds a dump already; choose another folder")
    for head in tap.heads:
        rows = tap.rows(head)
        check_finite(rows.vectors[:, None], rows.example_id, head.layer, head.kind)
        write_head(
            place,
            head,
            bucket=rows.bucket,
            example_id=rows.example_id,
            position=rows.position,
            vectors=rows.vectors,
            sliding_window=rows.sliding_window,
        )
    config = text_config(tap.model)
    manifest = capture_manifest(
        model=str(getattr(config, "name_or_path", "") or type(tap.model).__name__),
        revision=None,
        text_config=config,
        layout=tap.layout,
        wanted=tap.wanted,
        sampler=tap.sampler,
        dtype=str(next(tap.model.parameters()).dtype).removeprefix("torch."),
        pre_rope=tap.pre_rope,
        num_examples=len(tap.lengths),
    )
    write_examples(
        place, [Example(number, number, length, "") for number, length in enumerate(tap.lengths)]
    )
    if is_card(place / CARD_FILE) or not (place / CARD_FILE).exists():
        write_text(place / CARD_FILE, card(manifest, tap.heads, True))
    write_manifest(place, manifest)
    return place
