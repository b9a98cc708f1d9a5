"""The page of all figures: what it says, and that a browser shows it."""

import dataclasses
import importlib.metadata
import platform
import re
import shutil
import subprocess

import pandas as pd
import pytest
from html_page import Page

from reproduction import active_learning, layers, mnist
from reproduction.experiment import Cell, Failure, Finished, Outcome, Preset, Results
from reproduction.figures import mean_table, published_curves
from reproduction.page import NO_PLOTLY, write_report

FIGURES = [layers.FIGURE, mnist.FIGURE_100]
COLUMNS = ["figure", "method", "x", "seed", "nmse"]
ROWS = {
    "layers": [("layers", "ISTA", x, seed, 0.8 - 0.01 * x - 0.001 * seed) for x in (4, 10) for seed in (0, 1)],
    "mnist_k100": [("mnist_k100", "BayesLISTA", x, 0, 1.5 - x / 2) for x in (1, 2)],
}
TABLES = {name: pd.DataFrame(rows, columns=COLUMNS) for name, rows in ROWS.items()}
NOTHING = Results([], [])
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_NETWORK = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")


def finished(method, *seconds, warnings=()):
    cells = [Cell(method, (4,), seed, None, {}) for seed in range(len(seconds))]
    return [
        Finished("layers", cell, Outcome([], each, list(warnings))) for cell, each in zip(cells, seconds, strict=True)
    ]


@pytest.fixture
def report(tmp_path):
    """Write a report and read it."""

    def write(results=NOTHING):
        write_report(tmp_path / "report.html", FIGURES, "quick", TABLES, results)
        return Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    return write


def test_the_page_names_no_registry_of_packages(report, tmp_path):
    report()
    assert "/npm/" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_every_figure_has_its_chart_and_the_means_of_the_summary(report):
    page = report()
    assert len([each for each in page.all("div") if each.get("id", "").startswith("chart-")]) == 2
    for figure in FIGURES:
        assert figure.title in page.text
        for row in mean_table(figure, TABLES[figure.name]):
            assert list(row) in page.rows


def test_charts_are_described_and_share_one_script(report):
    page = report()
    charts = [each for each in page.all("div") if each.get("class") == "chart"]
    assert [each["id"] for each in charts] == [f"chart-{figure.name}" for figure in FIGURES]
    assert all(figure.x_label in each["aria-label"] for figure, each in zip(FIGURES, charts, strict=True))
    assert len(page.all("figcaption")) == len(FIGURES)
    assert sum(len(script) > 1_000_000 for script in page.scripts) == 1
    assert not any(attributes.keys() & {"src", "href", "srcset"} for _, attributes in page.tags)


def test_the_settings_of_the_preset_are_given(tmp_path):
    preset = Preset((2, 15), {"ISTA": 10, "LISTA": 3}, {"LISTA": 100}, {"n_train": 1000, "a_new_size": 7})
    figure = dataclasses.replace(layers.FIGURE, presets={"mine": preset})
    write_report(tmp_path / "report.html", [figure], "mine", TABLES, NOTHING)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "the preset mine" in page.text
    assert "training pairs 1000; a new size 7; layers L 2, 15." in page.text
    assert ["ISTA", "10", ""] in page.rows
    assert ["LISTA", "3", "100"] in page.rows


def test_curves_are_compared_where_a_figure_says_how(tmp_path):
    figure = active_learning.FIGURE
    rows = [("active", f"{name} (BayesLISTA)", 1, 0, 0.5) for name in ("active", "random")]
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_report(tmp_path / "report.html", [figure], "quick", {"active": table}, NOTHING)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert figure.comparison in page.text
    for row in active_learning.compare_with_random(table):
        assert list(row) in page.rows


def test_timings_are_summed_up_by_method(report):
    page = report(Results([*finished("ISTA", 1.0, 2.0, 6.0), *finished("FISTA", 0.25)], []))
    assert ["layers", "ISTA", "3", "9.0", "2.00"] in page.rows
    assert ["layers", "FISTA", "1", "0.2", "0.25"] in page.rows
    assert "Failures" not in page.text


def test_trouble_is_counted_by_reason(report):
    failures = [
        Failure("layers", Cell("LISTA", (4,), seed, None, {}), "Traceback\n /a/path\nRuntimeError: no <luck>")
        for seed in (0, 1)
    ]
    page = report(Results(finished("ISTA", 1.0, 1.0, 1.0, warnings=["mind the gap"]), failures))
    assert ["RuntimeError: no <luck>", "layers", "LISTA", "2"] in page.rows
    assert ["mind the gap", "layers", "ISTA", "3"] in page.rows
    assert "/a/path" not in page.text


def test_versions_are_given_but_not_whose_machine_it_was(report):
    page = report()
    for name in ("bayeslista", "jax", "numpy", "scipy", "scikit-learn"):
        assert [name, importlib.metadata.version(name)] in page.rows
    assert ["Python", platform.python_version()] in page.rows
    assert ["platform", f"{platform.system()} {platform.machine()}"] in page.rows


@pytest.mark.parametrize("plotly", [True, False], ids=["charts", "pictures"])
def test_the_same_numbers_give_the_same_bytes(plotly, tmp_path, report, request):
    if not plotly:
        request.getfixturevalue("without_plotly")
    pages = []
    for _ in range(2):
        report()
        pages.append((tmp_path / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_without_plotly_there_are_pictures_and_the_page_says_why(report, without_plotly):
    page = report()
    assert NO_PLOTLY in page.text
    assert not page.all("script")
    descriptions = [each["alt"] for each in page.all("img")]
    assert len(descriptions) == 2
    assert "layers L: ISTA; paper: ISTA" in descriptions[0]


def browse(page):
    """The document after its scripts have run, and what they said on the console, where fetching anything is told."""
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{NO_NETWORK}")
    page.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=10000"),
            *("--enable-logging=stderr", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    return done.stdout, re.findall(r".*\bCONSOLE\b.*", done.stderr)


@pytest.fixture(scope="module")
def browsed(tmp_path_factory):
    page = tmp_path_factory.mktemp("browser") / "report.html"
    write_report(page, FIGURES, "quick", TABLES, NOTHING)
    return browse(page)


@needs_browser
def test_every_chart_is_drawn_without_network_or_a_word_on_the_console(browsed):
    document, console = browsed
    assert console == []
    charts = document.split('<div id="chart-')[1:]
    assert len(charts) == len(FIGURES)
    for figure, chart in zip(FIGURES, charts, strict=True):
        labels = [row[0] for row in mean_table(figure, TABLES[figure.name])[1:]]
        assert len(labels) == 1 + len(published_curves()[figure.name])
        assert chart.count('class="trace scatter') == len(labels)
        for label in labels:
            assert f'data-unformatted="{label}"' in chart


@needs_browser
def test_no_button_sends_data_away(browsed):
    buttons = set(re.findall(r'class="modebar-btn[^>]* data-title="([^"]*)"', browsed[0]))
    assert "Pan" in buttons
    assert not {button for button in buttons if re.search("share|cloud|edit|plotly", button, re.IGNORECASE)}


@needs_browser
@pytest.mark.parametrize(
    "wrong", ["throw Error('oh')", "fetch('https://a.test')", "document.createElement('img').src = 'https://a.test'"]
)
def test_a_broken_script_or_a_fetch_would_be_seen(wrong, tmp_path):
    (tmp_path / "wrong.html").write_text(f"<html><head></head><script>{wrong}</script></html>", encoding="utf-8")
    assert browse(tmp_path / "wrong.html")[1]
