"""Counts the lines of every folder for the table of CONTRIBUTING.md: `make lines`.

It prints the folders that are a fifth above their aim; the text below the table says why.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path("CONTRIBUTING.md")
CODE = (".py", ".js", ".css", ".html")
ROW = re.compile(r"^\| (?P<names>…? ?`[^|]+`) \| (?P<what>.*) \| [\d,]+ \| (?P<aim>[\d,]+) \|$")


def main() -> None:
    """Write the counts into the table."""
    base, lines = Path(), []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not (row := ROW.match(line)):
            lines.append(line)
            continue
        names = re.findall(r"`([^`]+)`", row["names"])
        if not row["names"].startswith("…"):
            base = Path(names[0]) if names[0].startswith("src/") else Path()
            names = [""] if base.parts else names
        count = sum(_count(base / name) for name in names)
        if count > 1.2 * int(row["aim"].replace(",", "")):
            print(f"{row['names']}: {count:,} lines, aim {row['aim']}", file=sys.stderr)
        shown = f"{round(count, -2 if count >= 1000 else -1):,}"
        lines.append(f"| {row['names']} | {row['what']} | {shown} | {row['aim']} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _count(place: Path) -> int:
    """Lines of the code of a folder, or of the files that a pattern names."""
    found = place.parent.glob(place.name) if "*" in place.name else place.rglob("*")
    return sum(len(path.read_bytes().splitlines()) for path in found if path.suffix in CODE)


if __name__ == "__main__":
    main()
