import base64
import json
import os
import re
from xml.etree import ElementTree

import pytest
from html_page import Page

from bayeslista.plots import plot_nmse
from bayeslista.reports.page import Figure, Gallery, Paragraph, Section, Table, Widget, write_page

SECTIONS = [
    Section(
        "Text & tables", [Paragraph("1 < 2 <script>alert('x')</script>"), Table(["a", "b"], [["r", "<b>"]], "c&d")]
    ),
    Section("Figures", [Table(["a"], []), Figure(plot_nmse({"<ISTA>": 0.5}).figure, 'bars of "NMSE"', "c > d")]),
    Section("Bare", [Figure(plot_nmse({"a": 0.5}).figure, "a bar")]),
]


@pytest.fixture
def page(tmp_path):
    write_page(tmp_path / "index.html", "A <title>", SECTIONS)
    return Page((tmp_path / "index.html").read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_says_its_language_title_and_encoding(page):
    assert page.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in page.all("meta")
    assert page.text.count("A <title>") == 2
    assert [len(page.all(tag)) for tag in ("h1", "h2", "section", "figure")] == [1, 3, 3, 2]


def test_text_is_shown_as_written_and_never_becomes_markup(page):
    assert "1 < 2 <script>alert('x')</script>" in page.text
    assert not page.all("script")
    assert not page.all("b")
    assert "c&d" in page.text
    assert "c > d" in page.text


def test_tables_name_their_columns_and_rows(page):
    assert [cell["scope"] for cell in page.all("th")] == ["col", "col", "row", "col"]
    assert len(page.all("td")) == 1
    assert len(page.all("caption")) == 1


def test_figures_are_embedded_and_described(page):
    assert [image["alt"] for image in page.all("img")] == ['bars of "NMSE"', "a bar"]
    assert len(page.all("figcaption")) == 1
    for image in page.all("img"):
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")


def test_nothing_is_fetched_from_anywhere(page, tmp_path):
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[A-Za-z0-9+/=]+", "", text))
    assert not page.all("link")
    assert all(not attributes.keys() & {"href", "srcset"} for _, attributes in page.tags)


def test_widgets_keep_their_data_and_share_a_script(tmp_path):
    blocks = [Widget("<p>here</p>", {"text": each}, "let a = 1;") for each in ("</script><b>&amp;", "two")]
    write_page(tmp_path / "index.html", "title", [Section("one", blocks)])
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    *data, script = page.scripts
    assert [json.loads(each)["text"] for each in data] == ["</script><b>&amp;", "two"]
    assert script == "let a = 1;"
    assert not page.all("b")
    assert len([each for each in page.all("div") if each.get("class") == "widget"]) == 2


def test_figures_of_a_gallery_stand_in_one_element(tmp_path):
    pictures = [Figure(plot_nmse({name: 0.5}).figure, f"bar of {name}", name) for name in "ab"]
    write_page(tmp_path / "index.html", "title", [Section("one", [Gallery(pictures)])])
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert [image["alt"] for image in page.all("img")] == ["bar of a", "bar of b"]
    assert {"class": "gallery"} in page.all("div")


def test_the_same_blocks_give_the_same_bytes(tmp_path):
    pages = []
    for _ in range(2):
        picture = Figure(plot_nmse({"a": 0.5}).figure, "a bar")
        write_page(tmp_path / "index.html", "title", [Section("heading", [picture])])
        pages.append((tmp_path / "index.html").read_bytes())
    assert pages[0] == pages[1]


def test_both_light_and_dark_readers_are_served(tmp_path):
    write_page(tmp_path / "index.html", "title", [])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "color-scheme: light dark" in text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Table(["a", "b"], [["only one"]]), "header has 2 cells, but the row"),
        (Figure(plot_nmse({"a": 0.5}).figure, " "), "needs a description"),
        (Gallery([Figure(plot_nmse({"a": 0.5}).figure, "")]), "needs a description"),
        (Widget("", [float("nan")], ""), "not JSON compliant"),
    ],
)
def test_a_page_that_cannot_be_rendered_leaves_the_old_one(tmp_path, block, message):
    page = tmp_path / "index.html"
    page.write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        write_page(page, "title", [Section("heading", [block])])
    assert page.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["index.html"]


def test_a_page_that_cannot_take_its_name_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_page(tmp_path / "index.html", "title", [])
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_page(tmp_path / "absent" / "index.html", "title", [])
