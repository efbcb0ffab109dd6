"""The files beside the heads of a dump, written when all heads are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from qk_dump.card import CARD_FILE, card, is_card
from qk_dump.examples import EXAMPLES_FILE, Example, write_examples
from qk_dump.heads import HeadId
from qk_dump.manifest import MANIFEST_NAME, DumpManifest, write_manifest
from qk_dump.tokens import TOKENS_FILE, write_tokens
from qk_toolkit.files import remove_drafts, sync_folder, write_text


def write_side_files(
    folder: Path,
    manifest: DumpManifest,
    heads: Sequence[HeadId],
    examples: Iterable[Example],
    token_texts: Mapping[int, str] | None = None,
) -> None:
    """Write `examples.parquet`, `tokens.parquet`, the card, and at last `dump.json`.

    `token_texts` has the text of every token; None writes no `tokens.parquet`. A README.md that is
    not a card of this toolkit is kept.
    """
    for name in (EXAMPLES_FILE, TOKENS_FILE, CARD_FILE, MANIFEST_NAME):
        remove_drafts(folder / name)
    write_examples(folder, examples, manifest.capture_id)
    if token_texts is not None:
        write_tokens(folder, token_texts, manifest.capture_id)
    if is_card(folder / CARD_FILE) or not (folder / CARD_FILE).exists():
        ordered = sorted(heads, key=lambda head: (head.attended, head))
        text = card(manifest, ordered, examples=True, tokens=token_texts is not None)
        write_text(folder / CARD_FILE, text)
    sync_folder(folder)
    write_manifest(folder, manifest)
    sync_folder(folder)
