"""Single bits of files that are flipped."""

import numpy as np

from attention_plasticity import analyze_head
from attention_plasticity.config import make_config
from attention_plasticity.run.preparation import prepare
from captures import opened, save, segments, tables
from dumps import make_dump
from helpers.attention_dumps import Layer, make_attention_dump
from qk_dump.columns import COLUMNS
from qk_dump.reader import read_head
from qk_sniffer.capture.segments import head_groups, read_segment
from qk_toolkit.errors import DumpError
from reliability.damaged_files import KEYS, QUERIES, analyze, whole_dump
from reliability.outcomes import Outcome


def flips(data, step, first=0):
    """The data with one bit flipped, bit after bit from the byte `first` on."""
    for number in range(8 * first, 8 * len(data), step):
        place, bit = divmod(number, 8)
        wrong = bytearray(data)
        wrong[place] ^= 1 << bit
        yield number, bytes(wrong)


def flipped_head_file(folder, step):
    """Every bit of a key file with all columns, and of a query file with a window, when read."""
    make_attention_dump(folder / "k", texts=3, length=40, width=4, share=0.5, received=True)
    yield from _flipped_rows(folder / "k" / KEYS, step)
    make_attention_dump(folder / "q", texts=2, length=12, width=2, layer=Layer(window=8))
    yield from _flipped_rows(folder / "q" / QUERIES, step)


def _flipped_rows(file, step):
    right = file.read_bytes()
    expected = _rows(file)
    for number, wrong in flips(right, step):
        file.write_bytes(wrong)
        yield f"bit {number}", _outcome(lambda: _same_rows(_rows(file), expected))


def _rows(file):
    return read_head([file], examples=True, columns=COLUMNS)


def _same_rows(one, other):
    return one.window == other.window and _same(one.columns, other.columns)


def _same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def _outcome(accepted):
    """`accepted` says whether what was accepted is right."""
    try:
        return Outcome.UNHARMED if accepted() else Outcome.WRONG
    except DumpError:
        return Outcome.REFUSED
    except Exception:
        return Outcome.TRACEBACK


_FOOTER_STEP = 7  # bits; analysing a head takes longer than reading it


def flipped_footer(folder, step):
    """Bits of the footer of a query file, through the analysis of the head: all its tables.

    Without dump.json, so that the columns are all that is known about the layer.
    """
    dump = whole_dump(folder / "dump")
    (dump / "dump.json").unlink()
    config = make_config(num_pairs_per_bucket=8)
    expected = repr(analyze_head(0, 0, 0, dump, config))
    file = dump / QUERIES
    right = file.read_bytes()
    footer = len(right) - 8 - int.from_bytes(right[-8:-4], "little")
    for number, wrong in flips(right, _FOOTER_STEP * step, footer):
        file.write_bytes(wrong)
        yield (
            f"bit {number}",
            _outcome(lambda: repr(analyze_head(0, 0, 0, dump, config)) == expected),
        )


def flipped_segment(folder, step):
    """Every bit of a segment of an unfinished capture, as a resumed capture reads it."""
    save(opened(folder), [1])
    [place] = segments(folder)
    whole = read_segment(place)
    expected = whole.examples, _segment_rows(whole)

    def accepted():
        found = read_segment(place)
        return found is not None and (found.examples, _segment_rows(found)) == expected

    for file in sorted(place.iterdir()):
        right = file.read_bytes()
        for number, wrong in flips(right, step):
            file.write_bytes(wrong)
            yield f"{file.name} bit {number}", _outcome(accepted)
        file.write_bytes(right)


def _segment_rows(segment):
    return [
        found
        for table in tables()
        for group in range(len(head_groups(table)))
        for found in segment.rows(table, group)
    ]


def flipped_record(folder, step):
    """Every bit of a finished head's record, as a continued run reads it."""
    dump = make_dump(folder / "dump", layers=1, q_heads=1, k_heads=1, n=60, d=2)
    out = folder / "out"
    assert analyze(dump, out).code == 0
    run = prepare(
        make_config(dataset_local_root=str(dump), output_dir=str(out), num_pairs_per_bucket=16)
    )
    unit = run.units[0, 0]
    expected = repr(run.records.read(unit))
    [file] = run.records.folder.glob("l00k00-*.record")
    right = file.read_bytes()
    for number, wrong in flips(right, step):
        file.write_bytes(wrong)
        outcome = Outcome.REFUSED  # the head is computed again
        try:
            found = run.records.read(unit)
            if found is not None:
                outcome = Outcome.UNHARMED if repr(found) == expected else Outcome.WRONG
        except Exception:
            outcome = Outcome.TRACEBACK
        yield f"bit {number}", outcome
