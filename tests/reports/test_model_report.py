"""The report of a fitted model: its numbers, its drawings, and its signal viewer in a browser."""

import importlib.metadata
import json
import os
import re

import numpy as np
import pandas as pd
import pytest
from browser import Browser, needs_browser
from html_page import Page
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from bayeslista import ISTA, LISTA, SpikeSlab, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import brier_score, crps, log_score, nmse, pit_coverage, support_f_measure, variance_ratio
from bayeslista.reports import write_model_report
from bayeslista.reports.signal_viewer import choose_signals, relative_errors, signal_viewer

DATA = make_sparse_codes(n_train=40, n_test=60, n_observed=8, n_components=12, random_state=0)


class Guess(BaseEstimator):
    """A spike and slab for every coefficient from the matched filter, without any learning."""

    def __init__(self, design_matrix=None, shrinkage=0.1, random_state=None):
        self.design_matrix, self.shrinkage, self.random_state = design_matrix, shrinkage, random_state

    def fit(self, X, y):
        X, y = validate_data(self, X, y, multi_output=True)
        estimated = np.linalg.lstsq(y.reshape(len(y), -1), X)[0].T
        self.design_matrix_ = estimated if self.design_matrix is None else self.design_matrix
        self.shape_, self.recalibration_ = y.shape[1:], None
        return self

    def predict_dist(self, X):
        check_is_fitted(self)
        mean = validate_data(self, X, reset=False) @ self.design_matrix_ / np.sum(self.design_matrix_**2, axis=0)
        mean = mean.reshape(-1, *self.shape_)
        return SpikeSlab(1.0 / (1.0 + np.exp(2.0 - 4.0 * np.abs(mean))), 1.3 * mean, 0.05 + 0.2 * np.abs(mean))

    def predict(self, X):
        return self.predict_dist(X).mean()


def guess(**parameters):
    return Guess(design_matrix=DATA.design_matrix, **parameters).fit(DATA.Y_train, DATA.B_train)


def ista():
    return ISTA(5, design_matrix=DATA.design_matrix).fit(DATA.Y_train, DATA.B_train)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages of a model with distributions and of one without."""
    place = tmp_path_factory.mktemp("pages")
    for name, model in (("guess", guess()), ("ista", ista())):
        write_model_report(model, DATA.Y_test, DATA.B_test, place / f"{name}.html")
    return place


@pytest.fixture(scope="module")
def page(folder):
    """The first of them, read."""
    return Page((folder / "guess.html").read_text(encoding="utf-8"))


@pytest.fixture
def report(tmp_path):
    """Write a report and read it."""

    def write(model, X=DATA.Y_test, y=DATA.B_test):
        write_model_report(model, X, y, tmp_path / "model.html")
        return Page((tmp_path / "model.html").read_text(encoding="utf-8"))

    return write


def cells(page):
    return {row[0]: row[1:] for row in page.rows if row}


def embedded(page):
    return json.loads(page.scripts[0])


def test_scores_are_those_of_the_metrics_beside_trivial_ones(page):
    dist, codes, table = guess().predict_dist(DATA.Y_test), DATA.B_test, cells(page)
    expected = {
        "NMSE": nmse(codes, dist.mean()),
        "F-measure of the support": support_f_measure(codes, dist.prob_active > 0.5),
        "log score": log_score(dist, codes),
        "CRPS": crps(dist, codes),
        "Brier score of P(active)": brier_score(dist, codes),
        "PIT coverage, 50 %": pit_coverage(dist, codes, 0.5, random_state=0),
        "PIT coverage, 90 %": pit_coverage(dist, codes, 0.9, random_state=0),
        "variance over squared error": variance_ratio(dist, codes),
    }
    assert {name: table[name][0] for name in expected} == {name: f"{value:.3f}" for name, value in expected.items()}
    low, high = dist.interval(0.9)
    inside, active = (low <= codes) & (codes <= high), codes != 0
    assert table["coverage of 90 % intervals"][0] == f"{inside.mean():.3f}"
    assert table["coverage of 90 % intervals, nonzero codes"][0] == f"{inside[active].mean():.3f}"
    low, high = dist.interval(0.9, given_active=True)
    inside = (low <= codes) & (codes <= high)
    assert table["coverage of 90 % intervals given active, nonzero codes"][0] == f"{inside[active].mean():.3f}"
    assert table["score"] == ["model", "zero", "mean code", "best"]
    assert [table[name][1] for name in ("NMSE", "log score", "CRPS", "Brier score of P(active)")] == [
        *("1.000", "inf", f"{np.abs(codes).mean():.3f}", f"{active.mean():.3f}")
    ]
    assert table["NMSE"][2] == f"{nmse(codes, np.broadcast_to(codes.mean(axis=0), codes.shape)):.3f}"


def test_the_baseline_has_the_marginal_distribution_of_each_coefficient(report):
    often = np.array([[2.0, 0.0], [4.0, 0.0], [3.0, 3.0], [3.0, 0.0]])
    X = np.array([[1.0], [2.0], [3.0], [4.0]])
    table = cells(report(Guess().fit(X, often), X, often))
    # Each coefficient by its four signals and an average one more, of share 5/8, mean 3 and variance 0.4.
    share = np.array([4.625, 1.625]) / 5
    variance = np.array([(1 + 1 + 0.4) / 5, 0.4 / 2])
    reference = SpikeSlab(np.tile(share, (4, 1)), 3.0, variance)
    assert table["log score"][2] == f"{log_score(reference, often):.3f}"
    assert table["Brier score of P(active)"][2] == f"{brier_score(reference, often):.3f}"


@pytest.mark.parametrize("make", [ista, guess])
def test_the_mean_code_is_no_better_than_a_model_that_is_right(report, make):
    """Observations of a square, well-conditioned problem without noise say all."""
    codes = np.random.default_rng(0).normal(size=(30, 3))
    model = make().set_params(design_matrix=np.eye(3)).fit(codes, codes)
    own, zero, mean, best = map(str, cells(report(model, codes, codes))["NMSE"])
    assert float(own) < 0.5 < float(mean)
    assert (zero, best) == ("1.000", "smaller")


def test_a_model_without_distributions_has_point_scores_alone(report):
    page = report(ista())
    assert "ISTA predicts points, not distributions" in page.text
    assert not page.all("img")
    assert not {"low", "high", "active", "outside"} & embedded(page)["signals"][0].keys()
    assert "log score" not in cells(page)
    assert "No training history" in page.text


def test_calibration_is_drawn_for_distributions(page):
    descriptions = [image["alt"] for image in page.all("img")]
    assert len(descriptions) == 4
    for word in ("P(active)", "central intervals", "probability integral transform", "standard deviation"):
        assert any(word in each for each in descriptions)


@pytest.mark.parametrize(
    ("model", "alt", "counted"),
    [
        (LISTA(1, max_iter=2, random_state=0), "Learning curves", True),
        (SpikeSlabNet(2, mode="fast", prob_active=0.2, slab_var=1.0, noise_std=0.1), None, False),
    ],
    ids=["LISTA", "SpikeSlabNet"],
)
def test_the_models_of_the_package_get_a_page(report, model, alt, counted):
    model.set_params(design_matrix=DATA.design_matrix)
    if counted:
        model.fit(DATA.Y_train, DATA.B_train)
    page = report(model)
    assert ("counted in training" in cells(page)) == counted
    assert ("No training history" in page.text) == (alt is None)
    assert alt is None or any(alt in image["alt"] for image in page.all("img"))
    assert cells(page)["NMSE"][0] == f"{nmse(DATA.B_test, model.predict(DATA.Y_test)):.3f}"


def test_an_objective_alone_is_drawn(report):
    model = ista()
    model.history_ = {"objective": np.array([2.0, 1.0])}
    assert [image["alt"] for image in report(model).all("img")] == ["Learning curves of the training history."]


@pytest.mark.parametrize("history", [{}, {"objective": np.zeros(0)}, {"n_pairs": np.array([40])}])
def test_a_history_without_curves_is_not_drawn(report, history):
    model = ista()
    model.history_ = history
    page = report(model)
    assert "No training history" in page.text
    assert not page.all("img")


def test_sizes_parameters_and_versions_are_listed(page):
    table = cells(page)
    assert page.text.count("Guess on 60 test signals") == 2
    assert table["estimator"] == ["Guess"]
    assert table["design_matrix"] == ["array of shape (8, 12), float64"]
    assert table["design matrix"] == ["given"]
    assert table["shrinkage"] == ["0.1"]
    assert (table["observations of a signal, K"], table["coefficients of a code, D"]) == (["8"], ["12"])
    assert table["bayeslista"] == [importlib.metadata.version("bayeslista")]
    assert cells(page)["recalibrated after the fit"] == ["no"]


def test_names_and_parameters_never_become_markup_or_too_long(report):
    strange = type("</script><b>x", (Guess,), {})(shrinkage="<i>", random_state=["x" * 1000])
    strange.fit(DATA.Y_train, DATA.B_train).recalibration_ = "a map"
    page = report(strange)
    assert cells(page)["recalibrated after the fit"] == ["yes"]
    assert len(cells(page)["random_state"][0]) == 100
    assert page.text.count("</script><b>x on 60 test signals") == 2
    assert cells(page)["shrinkage"] == ["'<i>'"]
    assert not page.all("b")
    assert not page.all("i")


def test_the_signals_shown_span_best_to_worst(page):
    errors = relative_errors(DATA.B_test, guess().predict(DATA.Y_test))
    signals = embedded(page)["signals"]
    assert len(signals) == len(page.all("option")) == 50
    assert [errors[signals[i]["row"]] for i in (0, -1)] == [errors.min(), errors.max()]
    ranks = [each["rank"] for each in signals]
    assert (ranks[0], ranks[-1]) == (1, 60)
    assert set(np.diff(ranks)) == {1, 2}
    assert "50 of 60 signals, evenly by rank" in page.text


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200), st.integers(1, 200_000))
def test_any_errors_give_different_signals_in_order_of_error(errors, n_components):
    chosen = choose_signals(np.array(errors), n_components)
    assert 1 <= len(chosen) == len(set(chosen.tolist())) <= 50
    assert (np.diff(np.array(errors)[chosen]) >= 0).all()
    if len(chosen) > 1:
        assert len(chosen) * n_components <= 50_000
        assert {errors[chosen[0]], errors[chosen[-1]]} == {min(errors), max(errors)}


def test_data_of_a_signal_are_the_predictions_to_four_digits(page):
    dist = guess().predict_dist(DATA.Y_test)
    low, high = dist.interval(0.9)
    for signal in embedded(page)["signals"]:
        row = signal["row"]
        wanted = {"truth": DATA.B_test, "mean": dist.mean(), "low": low, "high": high}
        for name, values in wanted.items():
            np.testing.assert_allclose(signal[name], values[row], rtol=6e-4, atol=0)
        np.testing.assert_allclose(signal["active"], dist.prob_active[row], atol=6e-4)
        outside = (DATA.B_test[row] < low[row]) | (DATA.B_test[row] > high[row])
        assert signal["outside"] == np.flatnonzero(outside).tolist()


def test_names_of_coefficients_are_embedded_and_never_become_markup(report):
    names = [f"</script><b>source {d}" for d in range(12)]
    page = report(ista().fit(DATA.Y_train, pd.DataFrame(DATA.B_train, columns=names)))
    assert embedded(page)["names"] == names
    assert not page.all("b")
    assert "names" not in embedded(report(ista()))


def test_a_truth_just_outside_its_interval_is_outside_though_the_numbers_shown_agree():
    dist = SpikeSlab([[1.0]], 1.0, 1.0)
    high = dist.interval(0.9)[1][0, 0]
    signals = [signal_viewer(np.array([[high * c]]), np.ones((1, 1)), dist).data["signals"][0] for c in (1, 1.000001)]
    assert [each["outside"] for each in signals] == [[], [0]]
    assert signals[0]["truth"] == signals[1]["truth"] == signals[1]["high"]


def test_codes_that_are_zero_are_shown_and_have_no_relative_error(report):
    page = report(guess(), DATA.Y_test[:3], np.zeros((3, 12)))
    assert [each["error"] for each in embedded(page)["signals"]] == ["undefined, the code is zero"] * 3
    assert cells(page)["NMSE"][:3] == ["undefined"] * 3
    for name in ("coverage of 90 % intervals, nonzero codes", "coverage of 90 % intervals given active, nonzero codes"):
        assert cells(page)[name][0] == "undefined"
    assert cells(page)["log score"][2] == "0.000"


def test_one_signal_of_one_coefficient_is_enough(report):
    X, y = DATA.Y_train, DATA.B_train[:, 0] + 1.0
    page = report(Guess().fit(X, y), X[:1], y[:1])
    assert "on 1 test signal\n" in page.text
    assert "All 1 signal, from" in page.text
    assert len(embedded(page)["signals"][0]["truth"]) == 1
    assert cells(page)["design matrix"] == ["estimated from pairs"]


def test_the_same_model_and_pairs_give_the_same_bytes(report, folder, tmp_path):
    report(guess())
    assert (tmp_path / "model.html").read_bytes() == (folder / "guess.html").read_bytes()


def test_a_page_of_many_long_signals_stays_small(tmp_path):
    random = np.random.default_rng(0)
    codes = random.normal(size=(120, 784)) * (random.random((120, 784)) < 0.2)
    X = codes[:, :50] + random.normal(size=(120, 50))
    write_model_report(Guess(design_matrix=random.normal(size=(50, 784))).fit(X, codes), X, codes, tmp_path / "a.html")
    content = (tmp_path / "a.html").read_bytes()
    assert len(content) < 3_000_000
    assert len(json.loads(Page(content.decode()).scripts[0])["signals"]) == 50


def test_nothing_in_the_page_points_anywhere(page, folder):
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", (folder / "guess.html").read_text(encoding="utf-8"))
    assert not re.search(r"https?:|@import|url\(|\bfetch\b|XMLHttpRequest", text)
    assert all(not attributes.keys() & {"href", "srcset"} for _, attributes in page.tags)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (DATA.Y_test[:, :5], DATA.B_test, "X has 5 features"),
        (np.full_like(DATA.Y_test, np.nan), DATA.B_test, "X contains NaN"),
        (DATA.Y_test, DATA.B_test[:7], "y has shape"),
        (DATA.Y_test, DATA.B_test[:, :3], "y has shape"),
        (DATA.Y_test, np.full_like(DATA.B_test, np.inf), "y must be finite"),
    ],
)
@pytest.mark.parametrize("make", [ista, guess])
def test_pairs_that_do_not_suit_the_model_leave_the_old_page(tmp_path, make, X, y, message):
    (tmp_path / "model.html").write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        write_model_report(make(), X, y, tmp_path / "model.html")
    assert (tmp_path / "model.html").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["model.html"]


@pytest.mark.parametrize("model", [ISTA(), Guess()])
def test_a_model_that_is_not_fitted_is_refused(tmp_path, model):
    with pytest.raises(NotFittedError):
        write_model_report(model, DATA.Y_test, DATA.B_test, tmp_path / "model.html")


@pytest.mark.parametrize("make", [LinearRegression, lambda: make_pipeline(StandardScaler(), LinearRegression())])
def test_a_model_of_another_package_has_a_report_of_points(report, make):
    model = make().fit(DATA.Y_train, DATA.B_train)
    page = report(model)
    assert cells(page)["NMSE"][0] == f"{nmse(DATA.B_test, model.predict(DATA.Y_test)):.3f}"
    assert "design matrix" not in cells(page)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as each:
        yield each


@pytest.fixture
def opened(browser, folder):
    """The page of distributions, opened."""
    browser.open((folder / "guess.html").as_uri())
    return browser


def text(browser, name):
    return browser.run(f"document.querySelector('.widget {name}').textContent")


def drawn(browser):
    return browser.run("document.querySelector('.drawing').innerHTML")


def position(browser):
    """Which signal is chosen, by drop-down list and slider, which are to agree."""
    chosen, slid = browser.run("[document.querySelector('.choice').value, document.querySelector('.slider').value]")
    assert chosen == slid
    return int(chosen)


def box(browser, name):
    return browser.run(
        f"(() => {{ const e = document.querySelector('{name}'); e.scrollIntoView({{block: 'center'}});"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )


def click(browser, name):
    left, top, width, height = box(browser, name)
    browser.point(left + width / 2, top + height / 2, click=True)


@needs_browser
@pytest.mark.parametrize(
    ("name", "look"),
    [("guess", {}), ("guess", {"dark": True}), ("guess", {"width": 400}), ("ista", {"width": 400})],
    ids=["light", "dark", "phone", "phone, no distributions"],
)
def test_the_page_is_drawn_without_network_or_a_word_on_the_console(browser, folder, name, look):
    url = (folder / f"{name}.html").as_uri()
    browser.open(url, **look)
    browser.press("ArrowRight")
    left, top, width, height = (round(number) for number in box(browser, ".drawing"))
    picture = browser.pixels()[max(0, top) : top + height, left : left + width]
    assert width <= look.get("width", 1000)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert (picture[2, 2].mean() < 60) == look.get("dark", False)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    assert (picture != picture[2, 2]).any(axis=2).mean() > 0.01
    assert browser.console == []
    assert browser.requests == [url]


@needs_browser
def test_the_drawing_shows_the_signal_that_is_chosen(opened, page):
    signals = embedded(page)["signals"]
    for chosen in (25, 0, 49):
        opened.run(
            f"(() => {{ const c = document.querySelector('.choice'); c.value = {chosen};"
            "c.dispatchEvent(new Event('change')); })()"
        )
        signal = signals[chosen]
        assert position(opened) == chosen
        assert f"Row {signal['row']}, rank {signal['rank']} of 60: relative error {signal['error']};" in text(
            opened, ".facts"
        )
        marks = {
            kind: len(re.findall("M", (re.search(f'class="{kind}"[^>]* d="([^"]*)"', drawn(opened)) or "")[1]))
            for kind in ("interval", "mean", "truth", "outside", "bar", "bar-active")
        }
        active = np.flatnonzero(signal["truth"])
        assert marks == {
            "interval": 12,
            "mean": 12,
            "truth": len(set(active) - set(signal["outside"])),
            "outside": len(signal["outside"]),
            "bar": 12 - len(active),
            "bar-active": len(active),
        }
        assert "NaN" not in drawn(opened)


@needs_browser
def test_arrow_keys_buttons_and_slider_go_from_signal_to_signal(opened):
    seen = [drawn(opened)]
    assert position(opened) == 25

    def moved_to(place):
        assert position(opened) == place
        seen.append(drawn(opened))

    opened.press("ArrowRight")
    moved_to(26)
    opened.press("ArrowLeft")
    moved_to(25)
    assert seen[0] == seen[2] != seen[1]
    click(opened, ".next")
    click(opened, ".next")
    moved_to(27)
    click(opened, ".previous")
    moved_to(26)
    opened.run("document.querySelector('.slider').focus()")
    opened.press("End")
    moved_to(49)
    assert opened.run("document.querySelector('.next').disabled")
    opened.press("ArrowLeft")
    moved_to(48)
    opened.press("Home")
    moved_to(0)
    opened.run("document.activeElement.blur()")
    opened.press("ArrowLeft")
    moved_to(0)
    assert len(set(seen)) == 6
    assert opened.console == []


@needs_browser
def test_a_coefficient_is_called_by_its_name(browser, tmp_path):
    names = [f"<b>source {d}" for d in range(12)]
    model = ista().fit(DATA.Y_train, pd.DataFrame(DATA.B_train, columns=names))
    write_model_report(model, DATA.Y_test, DATA.B_test, tmp_path / "named.html")
    browser.open((tmp_path / "named.html").as_uri())
    browser.run("document.querySelector('details').open = true")
    assert "(<b>source " in text(browser, ".numbers tbody th")


@needs_browser
def test_a_coefficient_pointed_at_tells_its_numbers(opened, page):
    hint = text(opened, ".readout")
    left, top, width, height = box(opened, ".drawing")
    opened.point(left + width - 12, top + height / 3)
    words = text(opened, ".readout")
    signal = embedded(page)["signals"][25]
    assert re.match(r"Coefficient 11: truth .*, predicted mean .*, 90 % interval .* to .*, P\(active\) ", words)
    assert words.endswith(f"{signal['active'][11]:.3f}.")
    opened.point(2, 2)
    assert text(opened, ".readout") == hint


@needs_browser
def test_the_numbers_of_a_signal_are_there_to_be_read_aloud(opened):
    assert text(opened, ".facts") in opened.run("document.querySelector('.drawing').getAttribute('aria-label')")
    click(opened, "summary")
    opened.run("new Promise(done => setTimeout(done, 50))")
    rows = "document.querySelectorAll('.numbers tbody tr').length"
    nonzero = int(re.search(r"; (\d+) of 12 coefficients not zero", text(opened, ".facts"))[1])
    assert opened.run(rows) >= nonzero > 0
    before = text(opened, ".numbers")
    opened.press("ArrowRight")
    assert text(opened, ".numbers") != before


@needs_browser
def test_every_signal_can_have_a_scale_of_its_own(opened):
    shared = drawn(opened)
    click(opened, ".same-scale")
    assert drawn(opened) != shared
    click(opened, ".same-scale")
    assert drawn(opened) == shared
