import csv
import os
import re
import runpy
import warnings
from contextlib import redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bayeslista import BayesLISTA, NumericalWarning
from reproduction import demo
from reproduction.demo import DemoSizes, main

TINY = DemoSizes(n_train=40, n_test=9, n_observed=8, n_components=12, n_layers=2, converged_steps=50, max_iter=2)
FILES = ["code.png", "code.svg", "index.html", "nmse.png", "nmse.svg", "results.csv"]
METHODS = [
    "ISTA, 2 steps",
    "FISTA, 2 steps",
    "Lasso (FISTA, 50 steps)",
    "LISTA, 2 layers",
    "BayesLISTA, 2 layers",
    "SpikeSlabNet",
]


class Warner(BayesLISTA):
    """Warns as a fit with unusable updates does, twice."""

    def fit(self, X, y):
        for _ in range(2):
            warnings.warn("some <updates> were left out", NumericalWarning, stacklevel=2)
        return super().fit(X, y)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(demo, "_PAPER", TINY)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder and printed text of one run, with a warning on the way."""
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(demo, "_PAPER", TINY)
        patch.setattr(demo, "BayesLISTA", Warner)
        assert main(["--out", str(out), "--seed", "3"]) == 0
    return out, printed.getvalue()


def test_every_file_is_written_and_nothing_else(finished):
    out, _ = finished
    assert sorted(os.listdir(out)) == FILES
    for name in ("code.png", "nmse.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    for name in ("code.svg", "nmse.svg"):
        assert ElementTree.parse(out / name).getroot().tag.endswith("svg")


def test_the_table_has_a_row_for_every_method_and_agrees_with_the_file(finished):
    out, printed = finished
    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["method"] for row in rows] == METHODS
    for row in rows:
        line = next(line for line in printed.splitlines() if line.startswith(row["method"]))
        numbers = line.removeprefix(row["method"]).split()
        assert numbers[:2] == [f"{float(row['nmse']):.3f}", f"{float(row['f_measure']):.3f}"]
        assert float(row["nmse"]) > 0
        assert 0 <= float(row["f_measure"]) <= 1
        assert float(row["fit_seconds"]) >= 0
        assert float(row["predict_seconds"]) >= 0
    assert [bool(row["coverage_90"]) for row in rows] == [False] * 4 + [True] * 2
    for row in rows[-2:]:
        name = row["method"].partition(",")[0]
        assert f"{name}'s 90% intervals hold {float(row['coverage_90']):.1%} of all true coefficients" in printed
    assert str(out / "index.html") in printed


def test_a_warning_of_the_fit_is_a_single_line(finished):
    _, printed = finished
    assert printed.count("some <updates> were left out") == 1


def test_the_page_holds_table_figures_and_notes_and_needs_no_network(finished):
    out, _ = finished
    text = (out / "index.html").read_text(encoding="utf-8")
    seen = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append((tag, dict(attributes)))
    parser.feed(text)
    images = [attributes for tag, attributes in seen if tag == "img"]
    assert len(images) == 2
    assert all(image["alt"] and image["src"].startswith("data:") for image in images)
    assert not re.search(r"https?:|href=", text)
    assert all(method in text for method in METHODS)
    assert "some &lt;updates&gt; were left out" in text
    assert "Seed 3" in text


def test_the_same_seed_gives_the_same_scores():
    one, other = (demo._run(TINY, 5) for _ in range(2))
    assert [result[:3] for result in one.results] == [result[:3] for result in other.results]
    assert [result[5:] for result in one.results] == [result[5:] for result in other.results]
    assert one.notes == []


def test_an_existing_folder_keeps_its_other_files(tiny, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    (tmp_path / "results.csv").write_text("old", encoding="utf-8")
    assert main(["--out", str(tmp_path)]) == 0
    assert sorted(os.listdir(tmp_path)) == sorted([*FILES, "mine.txt"])
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") != "old"
    assert "BayesLISTA: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--seed", "-1"], ["--seed", str(2**32)], ["--no-such-option"]])
def test_wrong_arguments_are_refused_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: python -m reproduction.demo" in capsys.readouterr().err


def test_the_module_runs_as_a_script_and_exits_with_the_code(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(demo.__file__, run_name="__main__")
    assert stop.value.code == 1


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_to_is_one_clear_line(tiny, tmp_path, capsys, name):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert main(["--out", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"Cannot write the demonstration to {tmp_path / name}: ")
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_an_interrupt_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "results.csv").write_text("old", encoding="utf-8")
    monkeypatch.setattr(demo, "_run", interrupt)
    assert main(["--out", str(tmp_path)]) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["results.csv"]
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") == "old"


@pytest.mark.slow
def test_the_quick_start_runs(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "quickstart.py"), run_name="__main__")
    assert "NMSE of the mean: 0.3" in capsys.readouterr().out


@pytest.mark.slow
def test_the_photograph_is_reconstructed_and_its_errors_are_foretold(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["photograph.py", str(tmp_path)])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "photograph.py"), run_name="__main__")
    assert "rank correlation of 0.8" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["photograph_BayesLISTA.png", "photograph_SpikeSlabNet.png"]
