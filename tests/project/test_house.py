"""The layout of the source: distinct names, no private imports across packages, short files, the field's terms."""

import ast
import re
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "bayeslista"
SOURCES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTS = [path for kind in ("*.md", "*.rst", "*.py") for path in sorted((REPOSITORY / "docs").glob(kind))]
TEMPLATES = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".jinja", ".js", ".css")]
LONGEST = 500

# Instead: mixture of VAMP and EP answers, validation, recalibrate, posterior, coupled weights, uncertain.
WORDS = re.compile(
    r"(?<![a-z])(opinions?|judg(e|es|ed|ing|ements?|ments?)|mend(s|ed|ing)?|believ(e|es|ed|ing)"
    r"|beliefs?(?! propagation)|anchored|in( most)? doubt)(?![a-z])",
    re.IGNORECASE,
)


def relative(path):
    return path.relative_to(REPOSITORY).as_posix()


def repeated(places):
    """Names with more than one place."""
    return {name: where for name, where in places.items() if len(where) > 1}


def private_imports(source, package):
    """Names that a module of `package` imports from private modules, or private names, of other packages."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root, *rest = name.split(".")
            foreign = root == "bayeslista" and rest[:1] != [package]
            if foreign and any(part.startswith("_") and not part.endswith("__") for part in rest):
                found.append(name)
    return found


def test_no_file_name_occurs_twice():
    places = defaultdict(list)
    for path in SOURCES:
        if path.name != "__init__.py":
            places[path.name.removeprefix("_")].append(relative(path))
    assert repeated(places) == {}


def test_no_class_name_occurs_twice():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.removeprefix("_")].append(relative(path))
    assert repeated(places) == {}


def test_no_package_imports_what_is_private_to_another():
    found = {}
    for path in SOURCES:
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if names := private_imports(path.read_text(encoding="utf-8"), package):
            found[relative(path)] = names
    assert found == {}


def test_private_imports_would_be_found():
    assert private_imports("from bayeslista.metrics.a import _b", "plots") == ["bayeslista.metrics.a._b"]
    assert private_imports("def f():\n    import bayeslista.cli._options", "plots") == ["bayeslista.cli._options"]
    assert private_imports("from bayeslista.metrics._a import b", "metrics") == []
    assert private_imports("from bayeslista import __version__", "metrics") == []


def test_no_module_is_long():
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: n for path, n in lengths.items() if n > LONGEST} == {}, "split it along the story"


def test_source_and_pages_use_the_terms_of_the_field():
    found = []
    for path in [*SOURCES, *TEMPLATES, *DOCUMENTS]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [f"{relative(path)}:{number}: {match[0]}" for match in WORDS.finditer(line)]
    assert found == []


def test_words_would_be_found_and_parts_of_others_not():
    assert WORDS.search("it_believes") is not None
    assert WORDS.search("those most in doubt") is not None
    assert WORDS.search("we recommend loopy belief propagation and HTML anchors") is None
