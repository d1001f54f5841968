"""Collects the real text: documentation and source of Debian packages and of Python, all under free licences.

    python -m ninfer.embedded.training.corpus --root DIR --stdlib /usr/lib/python3.11 --out corpus.txt

DIR holds the unpacked packages, one folder each (`dpkg -x`). docs/embedded-model.md names every source's licence.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
from collections.abc import Iterator
from pathlib import Path

# Package folder -> patterns of its texts.
PACKAGES = {
    "python3.11-doc": ("usr/share/doc/python3.11/html/_sources/**/*.txt",),
    "debian-handbook": ("usr/share/doc/debian-handbook/html/en-US/*.html",),
    "debian-reference-en": ("usr/share/debian-reference/*.html",),
    "debian-faq": ("usr/share/doc/debian/FAQ/*.html",),
    "debian-policy": ("usr/share/doc/debian-policy/policy.html/_sources/*.txt",),
    "developers-reference": ("usr/share/doc/developers-reference/_sources/*.txt",),
    "git-doc": ("usr/share/doc/git-doc/**/*.txt",),
    "perl-doc": ("usr/share/perl/*/pod/*.pod",),
    "manpages": ("usr/share/man/man*/*.gz",),
    "manpages-dev": ("usr/share/man/man*/*.gz",),
}
# Never drawn as text: it separates documents in the collected file.
SEPARATOR = "\x1e"
_LEAST = 400
_MOST = 200_000


def read_text(path: Path) -> str:
    """The text of a file without markup of its kind, or an empty string if it is not UTF-8."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""
    if path.suffix == ".html":
        text = _plain_html(text)
    elif path.suffix == ".gz":
        text = _plain_roff(text)
    return re.sub(r"\n{3,}", "\n\n", text.replace("\r\n", "\n").replace(SEPARATOR, "")).strip()


def _plain_html(text: str) -> str:
    text = re.sub(r"(?is)<(script|style|head|nav).*?</\1>", "", text)
    text = re.sub(r"(?i)</(p|h\d|li|div|tr|pre|dt|dd)>|<br */?>", "\n\n", text)
    text = html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\xa0", " ")
    return re.sub(r"[ \t]+", " ", re.sub(r"\s*\n\s*\n\s*", "\n\n", text))


def _plain_roff(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if line.startswith((r".\"", r"'\"", ".TH", ".nf", ".fi", ".in", ".ft", ".ad", ".hy", ".if", ".ie", ".el")):
            continue
        if line.startswith((".SH", ".SS")):
            lines += ["", line.split(maxsplit=1)[-1].strip('"'), ""]
        elif line.startswith((".PP", ".TP", ".IP", ".LP", ".P")):
            lines.append("")
        else:
            lines.append(re.sub(r"^\.(?:[BIR]{1,2}|SM)\s+", "", line))
    text = re.sub(r"\\f[BIRP]|\\f\(..|\\&|\\c|\\/", "", "\n".join(lines))
    return text.replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\e", "\\").replace(r"\ ", " ")


def documents(root: Path, stdlib: Path) -> Iterator[str]:
    """Texts in a fixed order; very short ones are left out and very long ones are cut."""
    for package, patterns in PACKAGES.items():
        for pattern in patterns:
            for path in sorted((root / package).glob(pattern)):
                yield read_text(path)
    for path in sorted(stdlib.rglob("*.py")):
        if not {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings"} & set(path.parts):
            yield path.read_text(errors="ignore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--stdlib", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept = [text[:_MOST] for text in documents(args.root, args.stdlib) if len(text) >= _LEAST]
    args.out.write_text(SEPARATOR.join(kept))
    print(f"{args.out}: {len(kept)} documents, {sum(map(len, kept)):,} characters")


if __name__ == "__main__":
    main()
