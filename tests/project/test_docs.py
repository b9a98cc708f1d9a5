import ast
import importlib
import inspect
import re
import runpy
import sys
from fnmatch import fnmatch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *REPOSITORY.glob("*.md"), *REPOSITORY.glob("results/*.md")])
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def tool(name):
    """A script of the documentation, which is no module of the package."""
    spec = spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_code(text):
    return re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", text)


def anchors(path):
    """Anchors of the headings of a page, as they are made of their text."""
    text = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


class TestPages:
    @staticmethod
    def contents(name):
        """What the tables of contents of a page name."""
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        for table in re.findall(r"(?ms)^```\{toctree\}\n(.*?)^```", text):
            for line in table.splitlines():
                if line and not line.startswith(":"):
                    yield re.sub(r".*<(.*)>", r"\1", line)

    def test_every_page_is_in_a_table_of_contents(self):
        pages = {path.stem for path in [*DOCS.glob("*.md"), *DOCS.glob("*.rst")]}
        reached, left = set(), ["index"]
        while left:
            page = left.pop()
            reached.add(page)
            if (DOCS / f"{page}.md").exists():
                named = {other for other in pages for entry in self.contents(page) if fnmatch(other, entry)}
                left += named - reached
        assert pages - reached == set(), "add them to the table of contents in docs/guide.md, or docs/index.md"

    def test_tables_of_contents_name_no_page_that_is_not_there(self):
        build = tool("build")
        gathered = {build.place(path.relative_to(REPOSITORY).as_posix()) for path in build.pages()}
        gathered |= {"gallery/index.md", *(f"{path.stem}.md" for path in DOCS.glob("*.rst"))}
        for page in DOCS.glob("*.md"):
            for entry in self.contents(page.stem):
                assert entry.endswith("*") or f"{entry}.md" in gathered, f"{page.name}: {entry}"

    @pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
    def test_links_lead_somewhere(self, page):
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (page.parent / target).resolve() if target else page
            assert path.exists(), link
            assert not anchor or anchor in anchors(path), link

    @pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
    def test_what_is_to_be_made_can_be_made(self, page):
        targets = set(re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8")))
        named = re.findall(r"(?m)(?:`|^    )(?:[A-Z_]+=\w+ )?make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
        assert set(named) <= targets

    def test_links_hold_where_pages_are_gathered(self):
        build = tool("build")
        moved, needed = build.with_links_among_pages(
            DOCS / "start.md",
            "[a](../results/limit.md) [b](choosing.md#images) [c](../examples/quickstart.py) "
            "[d](https://example.org/y.md) ![e](../results/uncertainty.png) [f](#g)",
        )
        assert moved == (
            "[a](results/limit.md) [b](choosing.md#images) [c](gallery/quickstart.rst) "
            "[d](https://example.org/y.md) ![e](results/uncertainty.png) [f](#g)"
        )
        assert needed == {"results/uncertainty.png"}
        from_below, _ = build.with_links_among_pages(REPOSITORY / "results" / "limit.md", "[a](../docs/choosing.md)")
        assert from_below == "[a](../choosing.md)"

    def test_a_page_that_may_come_later_is_left_out_until_it_does(self):
        assert (
            tool("build").without_missing_pages("choosing*\nnobody_wrote_it*\nresults/*\n") == "choosing*\nresults/*\n"
        )


PUBLIC = ["bayeslista", *(f"bayeslista.{name}" for name in (
    "estimators", "distributions", "decisions", "datasets", "metrics", "active", "plots", "reports",
    "out_of_core", "out_of_core.dask",
))]  # fmt: skip


class TestReference:
    @staticmethod
    def documented():
        """The objects of docs/api.rst by their names."""
        home, objects = "", {}
        for line in (DOCS / "api.rst").read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                home = line.split()[-1]
            elif re.fullmatch(r"   \w+", line):
                objects[f"{home}.{line.strip()}"] = getattr(importlib.import_module(home), line.strip())
        return objects

    @pytest.mark.parametrize("package", PUBLIC)
    def test_every_public_name_is_listed(self, package):
        module = importlib.import_module(package)
        listed = self.documented().values()
        missing = [name for name in module.__all__ if not any(getattr(module, name) is known for known in listed)]
        assert missing == [], "add them to docs/api.rst"

    def test_every_listed_function_has_parameters_and_an_example(self):
        functions = {name: known for name, known in self.documented().items() if inspect.isfunction(known)}
        assert len(functions) > 30
        for name, known in functions.items():
            for section in ("Parameters\n----------", "Examples\n--------"):
                assert section in inspect.getdoc(known), name

    def test_the_mathematics_that_is_listed_is_there(self):
        modules = re.findall(r"(?m)^``([\w.]+)``", (DOCS / "api.rst").read_text(encoding="utf-8"))
        assert len(modules) > 10
        for name in modules:
            assert (REPOSITORY / "src" / "bayeslista" / f"{name.replace('.', '/')}.py").exists(), name


class TestExamples:
    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_an_example_is_in_the_gallery_and_checks_what_it_claims(self, path):
        build = tool("build")
        assert path in build.examples()
        script = path.read_text(encoding="utf-8")
        assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(script)))
        title, underline = ast.get_docstring(ast.parse(build.with_title(script))).splitlines()[:2]
        assert underline == "=" * len(title) > ""

    def test_an_example_without_a_title_is_refused(self):
        with pytest.raises(ValueError, match="no docstring"):
            tool("build").with_title("print(1)\n")

    @pytest.mark.slow
    @pytest.mark.no_cover
    @pytest.mark.parametrize("name", ["model_in_pictures", "overview"])
    def test_pictures_of_the_pages_can_be_made_anew(self, name, monkeypatch, tmp_path, capsys):
        script = REPOSITORY / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
        runpy.run_path(str(script), run_name="__main__")
        made = {path.name for path in tmp_path.iterdir()}
        assert made == {path.name for path in DOCS.glob(f"{name.split('_')[0]}*.png")}


class TestLinksOfASite:
    GOOD = '<h1 id="a">A</h1><a href="b.html#c">b</a><a href="#a">a</a><a href="https://example.org">e</a>'

    @pytest.fixture
    def check(self, tmp_path, capsys):
        (tmp_path / "b.html").write_text('<p id="c"><img src="data:image/png;base64,AA"></p>', encoding="utf-8")
        (tmp_path / "style.css").write_text("p {}", encoding="utf-8")

        def complaints(body):
            (tmp_path / "a.html").write_text(body, encoding="utf-8")
            number = tool("check_links").check(tmp_path)
            told = capsys.readouterr().err.splitlines()
            assert number == len(told)
            return told

        return complaints

    def test_links_that_hold_give_no_complaint(self, check):
        assert check(self.GOOD + '<link rel="stylesheet" href="style.css?v=1">') == []

    @pytest.mark.parametrize(
        ("broken", "complaint"),
        [
            ('<a href="c.html">', "does not exist"),
            ('<img src="c.png">', "does not exist"),
            ('<a href="b.html#d">', "no such anchor"),
            ('<a href="#d">', "no such anchor"),
            ('<script src="https://cdn.example.org/x.js"></script>', "another host"),
            ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "another host"),
            ('<img srcset="https://example.org/a.png 2x">', "another host"),
            ('<p style="background: url(https://example.org/a.png)">', "another host"),
            ("<style>@import 'https://example.org/a.css'</style>", "another host"),
        ],
    )
    def test_a_broken_link_is_told_of(self, check, broken, complaint):
        (told,) = check(self.GOOD + broken)
        assert complaint in told

    def test_a_style_that_loads_from_elsewhere_is_told_of(self, check, tmp_path):
        (tmp_path / "style.css").write_text("p { background: url('https://example.org/a.png') }", encoding="utf-8")
        (told,) = check(self.GOOD)
        assert "another host" in told

    def test_an_empty_folder_is_no_site(self, tmp_path, capsys):
        assert tool("check_links").check(tmp_path) == 1
        assert "no pages" in capsys.readouterr().err
