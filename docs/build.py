"""Build the documentation: gather its pages, run Sphinx with warnings as errors, check every link of what comes out.

Pages live in several places (docs/, results/, examples/, CONTRIBUTING.md, CHANGELOG.md) and refer to each other by
paths of the repository, so that they read well there, too. They are gathered in docs/_build/source, with links that
hold among them; all else that is generated stays there as well.

    python docs/build.py
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
BUILD = DOCS / "_build"
SOURCE, HTML, DOCTREES = BUILD / "source", BUILD / "html", BUILD / "doctrees"

# [text](target) and ![text](target), the target without a title
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def examples() -> list[Path]:
    """The scripts of the gallery: all but those whose names start with an underscore."""
    return sorted(path for path in (REPOSITORY / "examples").glob("*.py") if not path.name.startswith("_"))


def place(path: str) -> str:
    """Where a file of the repository is found among the gathered pages."""
    if path in ("CONTRIBUTING.md", "CHANGELOG.md"):
        return path.lower()
    if path == "README.md":
        return "index.md"
    if path in ("results/standard", "results/paper"):
        return "reproduction.md"
    folder, _, name = path.partition("/")
    if folder == "docs":
        return name
    if folder == "examples" and path.endswith(".py"):
        return f"gallery/{name.removesuffix('.py')}.rst"
    return path


def pages() -> Iterator[Path]:
    """All pages in Markdown."""
    yield from sorted(DOCS.glob("*.md"))
    yield from sorted((REPOSITORY / "results").glob("*.md"))
    yield from (REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md"))


def with_links_among_pages(page: Path, text: str) -> tuple[str, set[str]]:
    """The text of a page with links to where things are gathered, and the other files that it refers to."""
    here = page.relative_to(REPOSITORY).as_posix()
    needed = set()

    def move(link: re.Match[str]) -> str:
        target, hash_sign, anchor = link[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = os.path.normpath(os.path.join(os.path.dirname(here), target))
        gathered = place(path)
        if (REPOSITORY / path).is_file() and not gathered.endswith((".md", ".rst")):
            needed.add(path)
        return link[1] + os.path.relpath(gathered, os.path.dirname(place(here)) or ".") + hash_sign + anchor + link[3]

    return LINK.sub(move, text), needed


def without_missing_pages(text: str) -> str:
    """A table of contents may name pages by a pattern, ``name*``; without such a page the line is left out."""
    return re.sub(r"(?m)^(\w+)\*\n", lambda line: line[0] if [*DOCS.glob(f"{line[1]}*.md")] else "", text)


def with_title(script: str) -> str:
    """A script whose docstring opens with an underlined title, as the gallery wants it: its first sentence."""
    docstring = ast.get_docstring(ast.parse(script), clean=False)
    if not docstring:
        raise ValueError("An example has no docstring: its first line is the title in the gallery.")
    first, _, rest = docstring.partition("\n")
    title, colon, more = first.rstrip(".").partition(": ")
    subtitle = f"\n{more[:1].upper()}{more[1:]}.\n" if colon else ""
    opening = f"{title}\n{'=' * len(title)}\n{subtitle}{rest}"
    return script.replace(docstring, opening, 1)


def gather() -> None:
    """Put together the folder that Sphinx reads."""

    def keep(path: str, content: bytes) -> None:
        gathered = SOURCE / path
        gathered.parent.mkdir(parents=True, exist_ok=True)
        gathered.write_bytes(content)

    needed = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "results").rglob("*.csv")}
    for page in pages():
        text, others = with_links_among_pages(page, page.read_text(encoding="utf-8"))
        keep(place(page.relative_to(REPOSITORY).as_posix()), without_missing_pages(text).encode())
        needed |= others
    for name in needed:
        keep(place(name), (REPOSITORY / name).read_bytes())
    for path in DOCS.glob("*.rst"):
        keep(path.name, path.read_bytes())
    for path in examples():
        keep(f"examples/{path.name}", with_title(path.read_text(encoding="utf-8")).encode())
    keep("examples/GALLERY_HEADER.rst", (REPOSITORY / "examples" / "README.rst").read_bytes())


def main() -> int:
    """Build and check; not zero if anything is wrong."""
    from check_links import check
    from sphinx.cmd.build import main as sphinx

    shutil.rmtree(BUILD, ignore_errors=True)
    gather()
    arguments = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(DOCS), "-d", str(DOCTREES), str(SOURCE), str(HTML)]
    return sphinx(arguments) or min(check(HTML), 1)


if __name__ == "__main__":
    sys.exit(main())
