"""The figures of the paper: their cells, methods, published curves and files."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bayeslista import LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from reproduction import active_learning, layers, methods, mnist, undersampling
from reproduction.experiment import Cell, Preset
from reproduction.figures import curves, draw, draw_chart, published_curves, summary, write_figure
from reproduction.methods import CURVES, METHODS, Problem, learning_curve
from reproduction.reproduce import FIGURES, reproduce

ALL = [figure for group in FIGURES.values() for figure in group]
every_figure = pytest.mark.parametrize("figure", ALL, ids=lambda figure: figure.name)
COLUMNS = ["figure", "method", "x", "seed", "nmse"]
SIZES = {"n_train": 16, "n_test": 5, "n_observed": 4, "n_components": 6}


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(**SIZES, random_state=0)


class TestCells:
    @every_figure
    @pytest.mark.parametrize("preset", ["quick", "standard", "paper"])
    def test_no_two_cells_are_alike_and_all_can_be_computed(self, figure, preset):
        cells = figure.cells(preset)
        known = active_learning.LEARNERS if figure.name == "active" else METHODS
        assert len({(cell.method, cell.points, cell.seed) for cell in cells}) == len(cells)
        for cell in cells:
            assert cell.method in known
            assert cell.points
            assert set(cell.points) <= set(figure.presets[preset].points)

    @every_figure
    def test_the_sweeps_are_those_of_the_paper(self, figure):
        for preset in ("standard", "paper"):
            for curve in published_curves()[figure.name].values():
                assert list(figure.presets[preset].points) == curve.x

    @every_figure
    def test_more_is_more(self, figure):
        quick, standard, paper = (len(figure.cells(preset)) for preset in ("quick", "standard", "paper"))
        assert quick < standard <= paper

    def test_the_paper_has_its_seeds_and_epochs(self):
        for figure, n_seeds in ((layers.FIGURE, 10), (undersampling.FIGURE, 10), (active_learning.FIGURE, 20)):
            cells = figure.cells("paper")
            for method in figure.presets["paper"].seeds:
                expected = 3 if method == methods.LIMIT else n_seeds
                assert {cell.seed for cell in cells if cell.method == method} == set(range(expected))
        for figure in (layers.FIGURE, undersampling.FIGURE):
            assert figure.presets["paper"].epochs["BayesLISTA, published"] == 1000
            assert figure.presets["standard"].epochs["BayesLISTA, published"] == 100

    @every_figure
    def test_points_can_be_chosen(self, figure):
        first, *_, last = figure.presets["paper"].points
        chosen = figure.cells("paper", [last, first])
        assert {point for cell in chosen for point in cell.points} == {first, last}
        assert {cell.method for cell in chosen} == set(figure.presets["paper"].seeds)
        with pytest.raises(
            ValueError, match=rf"{figure.name} has no point 777 in the preset paper: choose from {first},"
        ):
            figure.cells("paper", [first, 777])

    def test_a_method_has_no_cell_beyond_its_end(self):
        chosen = mnist.FIGURE_100.cells("standard", [499])
        assert "LISTA" in {cell.method for cell in chosen}
        assert not {"BayesLISTA", "BayesLISTA, published"} & {cell.method for cell in chosen}
        assert all(cell.points == (499,) for cell in chosen)

    def test_a_curve_over_epochs_ends_where_the_method_does(self):
        ends = {
            (preset, cell.method): cell.points[-1]
            for preset in ("standard", "paper")
            for cell in mnist.FIGURE_100.cells(preset)
        }
        assert ends["standard", "BayesLISTA, published"] == 100
        assert ends["paper", "BayesLISTA, published"] == ends["standard", "LISTA"] == 499


class TestPublishedCurves:
    def test_there_is_one_for_every_figure(self):
        assert published_curves().keys() == {figure.name for figure in ALL}

    @every_figure
    def test_they_are_whole(self, figure):
        for curve in published_curves()[figure.name].values():
            assert len(curve.x) == len(curve.nmse)
            assert list(curve.x) == sorted(set(curve.x))

    def test_they_are_those_that_were_read(self, shared):
        read = json.loads((shared / "paper" / "curves.json").read_text())
        for figure, by_method in read.items():
            for method, curve in by_method.items():
                ours = published_curves()[figure][method]
                np.testing.assert_allclose(ours.nmse, curve["nmse"], atol=5.1e-5)
                np.testing.assert_allclose(ours.x, curve["x"], atol=2e-3)

    @pytest.mark.parametrize(
        ("module", "tolerance"), [(layers, 0.015), (undersampling, 0.03)], ids=["layers", "undersampling"]
    )
    @pytest.mark.parametrize(("method", "name"), [("ISTA", "ISTA"), ("FISTA, published", "FISTA")])
    def test_what_learns_nothing_lies_on_them(self, module, tolerance, method, name):
        preset = module.FIGURE.presets["paper"]
        # Test pairs do not depend on how many training pairs there are.
        few = dataclasses.replace(preset, seeds={method: 10}, sizes={**preset.sizes, "n_train": 1})
        cells = dataclasses.replace(module.FIGURE, presets={"few": few}).cells("few")
        errors = np.mean([[row.nmse for row in module.compute(cell)] for cell in cells], axis=0)
        np.testing.assert_allclose(errors, published_curves()[module.FIGURE.name][name].nmse, atol=tolerance)


class TestMethods:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_predicts_codes(self, data, method):
        # Calibration takes long to compile and has tests of its own.
        codes = METHODS[method](Problem(data, n_layers=2, epochs=0 if method == "SpikeSlabNet" else 2))
        assert codes.shape == data.B_test.shape
        assert np.isfinite(codes).all()

    def test_the_default_of_the_published_network_is_a_thousand_epochs(self, data, monkeypatch):
        made = []
        monkeypatch.setattr(methods.FilteringLearner, "learn", lambda *arguments: made.append(arguments[-2]) or [])
        METHODS["BayesLISTA, published"](Problem(data, n_layers=2))
        assert made == [1000]

    def test_estimators_run_by_their_own_defaults(self, data, monkeypatch):
        monkeypatch.setattr(LISTA, "fit", lambda self, *_: self)
        monkeypatch.setattr(LISTA, "predict", lambda self, _: self.max_iter)
        assert METHODS["LISTA"](Problem(data, n_layers=2)) == LISTA().max_iter
        assert METHODS["LISTA"](Problem(data, n_layers=2, epochs=7)) == 7
        monkeypatch.setattr(SpikeSlabNet, "fit", lambda self, *_: self)
        monkeypatch.setattr(SpikeSlabNet, "predict", lambda self, _: self.training)
        assert METHODS["SpikeSlabNet"](Problem(data, n_layers=2)) == SpikeSlabNet().training
        assert METHODS["SpikeSlabNet"](Problem(data, n_layers=2, epochs=7)) == 7

    # Where the printed prior diverges, codes are measured in units of their own.
    @pytest.mark.parametrize("n_layers", [2, 40])
    @pytest.mark.filterwarnings("ignore::bayeslista.NumericalWarning")
    def test_a_curve_of_the_published_network_is_that_of_separate_fits(self, data, n_layers):
        curve = list(CURVES["BayesLISTA, published"](Problem(data, n_layers, seed=3), [1, 2]))
        for n_epochs, codes in zip([1, 2], curve, strict=True):
            model = BayesLISTA.published(n_layers, design_matrix=data.design_matrix, max_iter=n_epochs, random_state=3)
            expected = model.fit(data.Y_train, data.B_train).predict(data.Y_test)
            np.testing.assert_allclose(codes, expected, rtol=1e-12)

    def test_a_curve_of_lista_is_that_of_separate_fits(self, data, monkeypatch):
        made, fit = [], LISTA.fit
        monkeypatch.setattr(LISTA, "fit", lambda self, *pairs: made.append(self.max_iter) or fit(self, *pairs))
        epochs = [1, 3, 2000, 3000]
        errors = learning_curve("LISTA", Problem(data, n_layers=2), epochs)
        assert made == epochs[:3], "a fit that stopped by itself is not repeated"
        for n_epochs, error in zip(epochs, errors, strict=True):
            model = LISTA(2, design_matrix=data.design_matrix, max_iter=n_epochs, random_state=0)
            assert error == nmse(data.B_test, model.fit(data.Y_train, data.B_train).predict(data.Y_test))

    @pytest.mark.parametrize("method", ["LISTA, published", "BayesLISTA"])
    def test_other_curves_are_refits(self, data, method):
        errors = learning_curve(method, Problem(data, n_layers=2), [1, 2])
        expected = [METHODS[method](Problem(data, n_layers=2, epochs=n)) for n in (1, 2)]
        assert errors == [nmse(data.B_test, codes) for codes in expected]

    def test_methods_without_layers_are_computed_once_for_all_depths(self, monkeypatch):
        calls = []
        ridge = METHODS["ridge regression"]
        monkeypatch.setitem(METHODS, "ridge regression", lambda problem: calls.append(1) or ridge(problem))
        rows = layers.compute(Cell("ridge regression", (2, 3, 4), 0, None, SIZES))
        assert len(calls) == 1
        assert [row.x for row in rows] == [2, 3, 4]
        assert len({row.nmse for row in rows}) == 1


class TestMnist:
    def test_a_cell_is_a_curve(self, monkeypatch):
        monkeypatch.setattr(mnist, "load_mnist_codes", lambda **sizes: make_sparse_codes(n_components=6, **sizes))
        sizes = {"n_train": 50, "n_test": 4, "n_observed": 3, "n_layers": 2}
        first, second = mnist.compute(Cell("ridge regression", (1, 4), 0, None, sizes))
        assert (first.x, second.x) == (1, 4)
        assert first.nmse == second.nmse


class TestActiveLearning:
    @pytest.fixture
    def images(self, monkeypatch):
        def load(n_observed, n_train, n_test, random_state):
            return make_sparse_codes(n_train, n_test, n_observed, 6, random_state=random_state)

        monkeypatch.setattr(active_learning, "load_mnist_codes", load)

    @pytest.mark.parametrize("method", active_learning.LEARNERS)
    @pytest.mark.slow
    def test_both_networks_learn_what_is_added(self, images, method):
        sizes = {"n_train": 16, "n_pool": 9, "n_test": 5, "n_observed": 4, "n_layers": 2, "epochs_per_addition": 1}
        rows = active_learning.compute(Cell(method, (0, 1), 0, 1, sizes))
        strategies = active_learning.LEARNERS[method].strategies
        assert {"active", "random"} <= set(strategies)
        assert [(row.method, row.x) for row in rows] == [
            (f"{name} ({method})", x) for name in strategies for x in (0, 1)
        ]
        start, end = ({row.nmse for row in rows if row.x == x} for x in (0, 1))
        assert len(start) == 1
        assert not start & end
        assert len(end) > 1

    def test_choices_are_compared_repeat_by_repeat(self):
        rng = np.random.default_rng(0)
        chosen, at_random = rng.normal(size=(2, 5, 3))
        rows = [
            ("active", f"{name} (BayesLISTA)", x, seed, errors[seed, x])
            for name, errors in (("active", chosen), ("random", at_random))
            for seed in range(5)
            for x in range(3)
        ]
        table = pd.DataFrame(rows, columns=COLUMNS)
        header, row = active_learning.compare_with_random(table)
        assert header == ("less random", "repeats", "1", "2", "p")
        assert row[:2] == ("active (BayesLISTA)", "5")
        less = (chosen - at_random)[:, 1:]
        np.testing.assert_allclose([float(text) for text in row[2:4]], less.mean(axis=0), atol=1e-4)
        # Student's t by its definition.
        t = less[:, 1].mean() / (less[:, 1].std(ddof=1) / np.sqrt(5))
        assert float(row[4]) == pytest.approx(2 * stats.t.sf(abs(t), 4), rel=0.1)
        assert row[0] in summary(active_learning.FIGURE, table).splitlines()[-1]

    def test_one_repeat_has_no_p_value(self):
        rows = [("active", f"{name} (BayesLISTA)", 1, 0, 0.5) for name in ("active", "random")]
        table = pd.DataFrame(rows, columns=COLUMNS)
        assert active_learning.compare_with_random(table)[1] == ("active (BayesLISTA)", "1", "0.0000", "")


class TestFiles:
    TABLE = pd.DataFrame(
        [
            *(("mnist_k100", "ISTA", x, seed, 0.9 + 0.01 * seed) for x in (1, 5) for seed in (0, 1)),
            ("mnist_k100", "a new method", 5, 0, 7.0),
        ],
        columns=COLUMNS,
    )
    NOTHING = TABLE[:0]

    def test_means_and_standard_deviations(self):
        curve = curves(mnist.FIGURE_100, self.TABLE)["ISTA"]
        assert curve.x == [1, 5]
        np.testing.assert_allclose(curve.nmse, 0.905)
        np.testing.assert_allclose(curve.std, 0.01 / np.sqrt(2))
        assert curve.n_seeds == 2
        assert curves(mnist.FIGURE_100, self.TABLE)["a new method"].std is None

    def test_a_curve_that_explodes_does_not_flatten_the_others(self):
        axes = draw(mnist.FIGURE_100, self.TABLE).axes[0]
        assert axes.get_ylim()[1] == 1.25
        assert axes.get_xscale() == "log"
        assert draw(layers.FIGURE, self.NOTHING).axes[0].get_ylim()[1] < 1.25

    def test_the_legend_names_methods_and_published_curves(self):
        legend = draw(mnist.FIGURE_100, self.TABLE).axes[0].get_legend()
        names = [text.get_text() for text in legend.get_texts()]
        assert names[:2] == ["ISTA", "a new method"]
        assert set(names[2:]) == {f"paper: {name}" for name in ("ISTA", "FISTA", "LISTA", "BayesLISTA")}

    def test_a_chart_shows_the_same_curves(self):
        chart = draw_chart(mnist.FIGURE_100, self.TABLE)
        axes = draw(mnist.FIGURE_100, self.TABLE).axes[0]
        lines = {line.name: line for line in chart.data}
        assert list(lines) == [text.get_text() for text in axes.get_legend().get_texts()]
        assert [line.line.dash == "dash" for line in chart.data] == [name.startswith("paper: ") for name in lines]
        assert lines["ISTA"].x == (1, 5)
        np.testing.assert_allclose(lines["ISTA"].y, 0.905)
        np.testing.assert_allclose(lines["ISTA"].error_y.array, 0.01 / np.sqrt(2))
        assert lines["a new method"].error_y.array is None
        assert lines["paper: LISTA"].y == tuple(published_curves()["mnist_k100"]["LISTA"].nmse)
        assert chart.layout.xaxis.type == "log"
        assert list(chart.layout.xaxis.tickvals) == list(axes.get_xticks())
        assert chart.layout.yaxis.range == (None, axes.get_ylim()[1])

    def test_a_chart_of_nothing_shows_the_published_curves(self):
        chart = draw_chart(layers.FIGURE, self.NOTHING)
        assert [line.name for line in chart.data] == [f"paper: {name}" for name in published_curves()["layers"]]
        assert chart.layout.xaxis.type == "linear"
        assert chart.layout.yaxis.range is None

    def test_the_summary_has_what_there_is(self):
        lines = summary(mnist.FIGURE_100, self.TABLE).splitlines()
        assert re.split(r"\s{2,}", lines[1]) == ["epochs", "seeds", "1", "5"]
        assert re.split(r"\s{2,}", lines[3]) == ["ISTA", "2", "0.905", "0.905"]
        assert re.split(r"\s{2,}", lines[4]) == ["a new method", "1", "7.000"]
        assert lines[-1].startswith("paper: FISTA")

    def test_the_same_numbers_give_the_same_bytes(self, tmp_path):
        folders = [tmp_path / name for name in ("a", "b")]
        for folder in folders:
            folder.mkdir()
            write_figure(mnist.FIGURE_100, self.TABLE, folder)
        names = sorted(path.name for path in folders[0].iterdir())
        assert names == ["mnist_k100.csv", "mnist_k100.png", "mnist_k100.svg"]
        for name in names:
            assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_a_figure_from_end_to_end(tmp_path):
    preset = Preset((2, 3), {"ISTA": 2, "Lasso, converged": 1, "no such method": 1}, {}, SIZES)
    tiny = dataclasses.replace(layers.FIGURE, presets={"quick": preset})
    results = reproduce([tiny], "quick", tmp_path, progress=False)
    lines = (tmp_path / "layers.csv").read_text().splitlines()
    assert lines[0] == "figure,method,x,seed,nmse"
    expected = [("ISTA", x, seed) for seed in (0, 1) for x in (2, 3)] + [("Lasso, converged", x, 0) for x in (2, 3)]
    assert [tuple(row) for row in results.table("layers")[["method", "x", "seed"]].to_numpy()] == expected
    assert len(lines) == 1 + len(expected)
    timings = (tmp_path / "timings.csv").read_text().splitlines()
    assert len(timings) == 4
    assert [failure.reason for failure in results.failures] == ["KeyError: 'no such method'"] * 2
    assert "KeyError: 'no such method'" in (tmp_path / "failures.txt").read_text()
