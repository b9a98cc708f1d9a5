import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from bayeslista import ISTA, BayesLISTA, SpikeSlab
from bayeslista.plots import learning_curves, plot_code, plot_nmse, plot_signal

CODE = np.array([0.0, 1.5, 0.0, -0.7])
BELIEF = SpikeSlab([0.1, 0.9, 0.3, 0.6], [0.0, 1.2, 0.1, -0.5], 0.25)


def bar_heights(axes):
    return {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}


def test_a_code_shows_truth_mean_and_two_standard_deviations():
    axes = plot_code(CODE, BELIEF, title="one code")
    _, mean, truth = axes.lines
    np.testing.assert_array_equal(mean.get_ydata(), BELIEF.mean())
    np.testing.assert_array_equal(truth.get_xdata(), [1, 3])
    np.testing.assert_array_equal(truth.get_ydata(), [1.5, -0.7])
    spread = np.array(axes.collections[0].get_segments())
    np.testing.assert_allclose(spread[:, 1, 1] - spread[:, 0, 1], 4 * BELIEF.std())
    np.testing.assert_allclose(spread[:, :, 1].mean(axis=1), BELIEF.mean(), atol=1e-15)
    assert axes.get_title(loc="left") == "one code"


def test_the_probability_of_being_active_stands_below_and_marks_the_true_support_by_colour():
    strip = plot_code(CODE, BELIEF).child_axes[-1]
    assert bar_heights(strip) == dict(enumerate(BELIEF.prob_active))
    colours = {round(bar.get_x() + 0.4): bar.get_facecolor() for bar in strip.patches}
    assert colours[1] == colours[3] != colours[0] == colours[2]
    assert strip.get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize("size", [1, 7, 100, 784])
def test_a_code_of_any_length_is_drawn_inside_its_figure(size):
    axes = plot_code(np.ones(size), SpikeSlab(np.full(size, 0.5), 1.0, 1.0), title="title")
    figure = axes.figure
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


def test_an_all_zero_code_and_a_point_distribution_are_drawn():
    plot_code(np.zeros(3), SpikeSlab(np.zeros(3), 0.0, 0.0)).figure.draw_without_rendering()


def test_given_axes_are_used_and_returned():
    for draw in (
        lambda axes: plot_code(CODE, BELIEF, axes=axes),
        lambda axes: plot_signal(BELIEF, CODE, axes=axes),
        lambda axes: plot_nmse({"a": 0.5}, axes=axes),
    ):
        axes = Figure().subplots()
        assert draw(axes) is axes


@pytest.mark.parametrize(
    ("code", "dist", "message"),
    [
        (CODE[:3], BELIEF, r"code has shape \(3,\) and distribution \(4,\)"),
        (CODE[None], BELIEF, r"\(1, 4\)"),
        ([], BELIEF[:0], r"\(0,\)"),
        ([0.0, np.nan, 0.0, 0.0], BELIEF, "code must be finite"),
        (["a"] * 4, BELIEF, "code must hold real numbers"),
    ],
)
def test_codes_that_cannot_be_drawn_are_refused_by_name(code, dist, message):
    with pytest.raises(ValueError, match=message):
        plot_code(code, dist)


def legend_texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_signal_shows_intervals_mean_and_the_truth_filled_where_it_is_outside():
    truth = np.array([0.9, 1.5, 0.0, 2.0])
    low, high = BELIEF.interval(0.8)
    axes = plot_signal(BELIEF, truth, level=0.8, title="one signal")
    spread = np.array(axes.collections[0].get_segments())
    np.testing.assert_array_equal(spread[:, :, 0], np.arange(4)[:, None] * [1, 1])
    np.testing.assert_array_equal(spread[:, :, 1], np.stack([low, high], axis=1))
    _, mean, inside, outside = axes.lines
    np.testing.assert_array_equal(mean.get_ydata(), BELIEF.mean())
    np.testing.assert_array_equal(inside.get_xdata(), [1])
    np.testing.assert_array_equal(inside.get_ydata(), [1.5])
    np.testing.assert_array_equal(outside.get_xdata(), [0, 3])
    np.testing.assert_array_equal(outside.get_ydata(), [0.9, 2.0])
    assert inside.get_markerfacecolor() != outside.get_markerfacecolor()
    assert legend_texts(axes) == [
        "80 % interval",
        "predicted mean",
        "truth, where not zero",
        "truth outside (2 of 4)",
    ]
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == ("one signal", "index of the coefficient")


def test_a_signal_without_truth_shows_none():
    axes = plot_signal(BELIEF, level=0.995)
    assert legend_texts(axes) == ["99.5 % interval", "predicted mean"]
    assert axes.get_title(loc="left") == ""


def test_intervals_that_are_given_take_the_place_of_those_of_the_distribution():
    low, high = np.array([-1.0, 1.0, 0.2, 0.0]), np.array([1.0, 2.0, 0.4, 0.0])
    axes = plot_signal(BELIEF, [0.0, 1.5, 0.0, 0.0], interval=(low, high))
    spread = np.array(axes.collections[0].get_segments())
    np.testing.assert_array_equal(spread[:, :, 1], np.stack([low, high], axis=1))
    np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [2])


def test_a_signal_may_be_believed_as_gaussian_or_by_samples():
    mean, std = np.array([0.0, 1.0]), np.array([1.0, 2.0])
    spread = np.array(plot_signal((mean, std), level=0.95).collections[0].get_segments())[:, :, 1]
    np.testing.assert_allclose(spread, np.stack([mean - 1.959964 * std, mean + 1.959964 * std], axis=1), rtol=1e-6)
    draws = np.arange(1.0, 101.0)[:, None] * [1.0, -1.0]
    axes = plot_signal(draws, level=0.9)
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [50.5, -50.5])
    spread = np.array(axes.collections[0].get_segments())[:, :, 1]
    np.testing.assert_array_equal(spread, [[5.0, 95.0], [-96.0, -6.0]])


@pytest.mark.parametrize("size", [1, 784])
def test_a_signal_of_any_length_is_drawn_inside_its_figure(size):
    figure = plot_signal((np.zeros(size), 1.0), np.ones(size), title="title").figure
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dist": SpikeSlab(0.5, 1.0, 1.0)}, r"dist is of shape \(\); it must be \(D,\)"),
        ({"dist": BELIEF[None]}, r"dist is of shape \(1, 4\)"),
        ({"dist": BELIEF[:0]}, r"dist is of shape \(0,\)"),
        ({"dist": (0.0, 1.0, 2.0)}, "must be \\(mean, std\\)"),
        ({"B": CODE[:3]}, r"B has shape \(3,\) and dist \(4,\)"),
        ({"B": [0.0, np.nan, 0.0, 0.0]}, "B must be finite"),
        ({"level": 90.0}, "level must be a number in"),
        ({"level": 1.0}, "low of interval must be finite.* Ask for a lower level"),
        ({"interval": [CODE, CODE]}, r"interval must be a tuple \(low, high\)"),
        ({"interval": (CODE, CODE, CODE)}, r"interval must be a tuple \(low, high\)"),
        ({"interval": (CODE[:3], CODE)}, "low of interval has shape"),
        ({"interval": (CODE, CODE + np.inf)}, "high of interval must be finite"),
        ({"interval": (CODE + 1.0, CODE)}, "low of interval must be at most high"),
    ],
)
def test_signals_that_cannot_be_drawn_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        plot_signal(**{"dist": BELIEF, **options})


def test_errors_are_bars_in_the_order_given_with_their_values():
    axes = plot_nmse({"second best": 0.5, "best": 0.25})
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.25]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["second best", "best"]
    assert [text.get_text() for text in axes.texts] == ["0.500", "0.250"]
    assert axes.yaxis_inverted()


def test_a_perfect_score_alone_still_has_an_axis():
    assert plot_nmse({"perfect": 0.0}).get_xlim() == (0.0, 1.0)


@pytest.mark.parametrize(
    ("scores", "message"),
    [({}, "scores is empty"), ({"a": -0.1}, "scores must be finite"), ({"a": float("nan")}, "scores must be finite")],
)
def test_scores_that_cannot_be_drawn_are_refused_by_name(scores, message):
    with pytest.raises(ValueError, match=message):
        plot_nmse(scores)


def test_pictures_touch_no_global_of_matplotlib():
    script = """
import sys
import bayeslista.plots
assert "matplotlib" not in sys.modules, "importing the module must stay cheap"
from types import SimpleNamespace
import matplotlib
before = matplotlib.rcParams.copy()
from bayeslista import SpikeSlab
bayeslista.plots.plot_code([1.0], SpikeSlab([0.5], 1.0, 1.0)).figure.draw_without_rendering()
bayeslista.plots.plot_nmse({"a": 0.5}).figure.draw_without_rendering()
dist = SpikeSlab([0.5, 0.2], 1.0, 1.0)
for draw in ("plot_signal", "pit_histogram", "reliability_diagram", "coverage_curve", "error_by_std"):
    getattr(bayeslista.plots, draw)(dist, [1.0, 0.0]).figure.draw_without_rendering()
bayeslista.plots.uncertainty_map([[1.0]], [[0.5]], [[2.0]]).figure.draw_without_rendering()
bayeslista.plots.learning_curves(SimpleNamespace(history_={"training_nmse": [0.5]})).figure.draw_without_rendering()
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


class Fitted:
    def __init__(self, **history):
        self.history_ = {name: np.asarray(values) for name, values in history.items()}


FILTERED = Fitted(training_nmse=[0.9, 0.7, 0.6])
DESCENDED = Fitted(validation_nmse=[0.9, 0.7, 0.6], training_error=[3.0, 2.0, 1.0], validation_error=[3.0, 2.5, 2.6])
ASCENDED = Fitted(
    training_nmse=[0.8, 0.6, 0.5],
    validation_nmse=[0.9, 0.7, 0.6],
    training_error=[3.0, 2.0, 1.0],
    validation_error=[3.0, 2.5, 2.6],
    elbo=[-5.0, -4.0, -3.0],
    shrinkage=np.ones((3, 4)),
)


@pytest.mark.parametrize(
    ("model", "strips"),
    [(FILTERED, []), (DESCENDED, ["mean squared error"]), (ASCENDED, ["mean squared error", "ELBO"])],
)
def test_learning_curves_are_those_of_the_history_by_epoch(model, strips):
    axes = learning_curves(model)
    assert axes.get_ylabel() == "NMSE"
    assert axes.get_ylim()[0] == 0.0
    assert [strip.get_ylabel() for strip in axes.child_axes] == strips
    panels = [axes, *axes.child_axes]
    assert [panel.get_xlabel() for panel in panels] == [""] * len(strips) + ["epoch"]
    drawn = {f"{line.get_label().replace(' ', '_')}_nmse": line for line in axes.lines}
    assert drawn.keys() == {name for name in model.history_ if name.endswith("nmse")}
    for name, line in drawn.items():
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
        np.testing.assert_array_equal(line.get_ydata(), model.history_[name])


@pytest.mark.parametrize("model", [DESCENDED, ASCENDED])
def test_training_and_validation_errors_have_a_legend(model):
    strip = learning_curves(model).child_axes[0]
    curves = {line.get_label(): line.get_ydata().tolist() for line in strip.lines}
    assert curves == {"training": [3.0, 2.0, 1.0], "validation": [3.0, 2.5, 2.6]}
    assert [text.get_text() for text in strip.get_legend().get_texts()] == ["training", "validation"]
    assert strip.get_yscale() == "log"


def test_errors_of_zero_and_epochs_that_failed_are_drawn():
    perfect = Fitted(validation_nmse=[0.0], training_error=[0.0], validation_error=[0.0])
    wrong = Fitted(
        validation_nmse=[np.nan, 0.5], training_error=[1.0, 0.5], validation_error=[np.nan, 0.5], elbo=[-np.inf, 1]
    )
    for model in (perfect, wrong):
        axes = learning_curves(model)
        axes.figure.draw_without_rendering()
        assert axes.child_axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("model", [FILTERED, DESCENDED, ASCENDED])
def test_learning_curves_lie_inside_their_figure(model):
    figure = learning_curves(model).figure
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


def test_an_objective_alone_is_drawn_by_step():
    axes = learning_curves(Fitted(objective=[2.0, 1.0]))
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.child_axes) == ("objective", "step", [])
    assert axes.lines[0].get_ydata().tolist() == [2.0, 1.0]


def test_learning_curves_are_drawn_on_given_axes():
    axes = Figure().subplots()
    assert learning_curves(ASCENDED, axes=axes) is axes


def test_a_bayesian_model_shows_how_it_learned():
    random = np.random.default_rng(0)
    codes = random.standard_normal((20, 2))
    model = BayesLISTA(n_layers=2, design_matrix=np.eye(2), max_iter=3, random_state=0).fit(codes, codes)
    strips = learning_curves(model).child_axes
    assert [len(strip.lines[0].get_xdata()) for strip in strips] == [model.n_iter_, model.n_iter_]


@pytest.mark.parametrize("model", [BayesLISTA(), ISTA(design_matrix=np.eye(2)).fit(np.eye(2), np.eye(2))])
def test_models_without_a_history_are_refused_by_name(model):
    with pytest.raises(ValueError, match="model has no training history to draw"):
        learning_curves(model)
