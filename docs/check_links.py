"""Check the links of a folder of HTML pages without a network.

Every link must lead to a file of the folder, and to an anchor in it if it names one; no page may load anything from
another host. Links to other hosts are for readers to follow: they are counted, not fetched.

    python docs/check_links.py docs/_build/html
"""

import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself; an <a> waits for a reader, and so do these <link>s.
LOADING = {"src", "srcset", "data", "poster", "href"}
WAITING_RELATIONS = {"canonical", "index", "search", "next", "prev", "author", "copyright", "license"}
STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """Anchors of a page, what it links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loads: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag defines, and where it points."""
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        self.loads += [match[1] or match[2] for match in STYLE_URL.finditer(values.get("style", ""))]
        relations = set(values.get("rel", "").split())
        for name in LOADING & values.keys():
            waits = name == "href" and (tag in {"a", "area", "base"} or relations & WAITING_RELATIONS)
            urls = [part.split()[0] for part in values[name].split(",")] if name == "srcset" else [values[name]]
            (self.links if waits else self.loads).extend(urls)

    def handle_data(self, data: str) -> None:
        """Styles may load pictures, too."""
        if self._in_style:
            self.loads += [match[1] or match[2] for match in STYLE_URL.finditer(data)]


def check(folder: Path) -> int:
    """Print what is wrong with the links of a folder; the number of complaints."""
    root = folder.resolve()
    paths = [path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts]  # templates of the theme
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    complaints, elsewhere, n_links = [], Counter[str](), 0
    if not pages:
        complaints.append(f"{folder} has no pages.")

    def follow(source: Path, url: str, loads: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme == "data":
            return
        if parts.scheme or parts.netloc:
            if loads:
                complaints.append(f"{source.relative_to(root)} loads {url} from another host.")
            elsewhere[parts.netloc or parts.scheme] += 1
            return
        target = (source.parent / unquote(parts.path)).resolve() if parts.path else source
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            complaints.append(f"{source.relative_to(root)} leads to {url}, which does not exist.")
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            complaints.append(f"{source.relative_to(root)} leads to {url}, but there is no such anchor.")

    for path, page in pages.items():
        for url in page.links:
            follow(path, url, loads=False)
        for url in page.loads:
            follow(path, url, loads=True)
        n_links += len(page.links) + len(page.loads)
    for path in sorted(root.rglob("*.css")):
        for match in STYLE_URL.finditer(path.read_text(encoding="utf-8")):
            follow(path, match[1] or match[2], loads=True)

    for complaint in complaints:
        print(complaint, file=sys.stderr)
    hosts = ", ".join(f"{host} ({count})" for host, count in sorted(elsewhere.items())) or "none"
    print(f"{len(pages)} pages, {n_links} links, {len(complaints)} of them wrong. Other hosts, not asked: {hosts}.")
    return len(complaints)


if __name__ == "__main__":
    sys.exit(min(check(Path(sys.argv[1])), 1))
