"""Reads a page, for the tests of those who write one."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects them with their text, the rows of tables and the scripts."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.text, self.rows, self.scripts = [], [], "", [], []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack[-1:] == ["script"]:
            self.scripts.append(data)
            return
        self.text += data
        if self.stack[-1:] in (["th"], ["td"]):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]
