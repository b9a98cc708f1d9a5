import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import binom, binomtest

from bayeslista import SpikeSlab
from bayeslista.metrics import expected_calibration_error, pit, pit_coverage, reliability_curve
from bayeslista.plots import coverage_curve, error_by_std, pit_histogram, reliability_diagram

RANDOM = np.random.default_rng(0)
BELIEF = SpikeSlab(RANDOM.random((40, 25)), RANDOM.standard_normal((40, 25)), RANDOM.gamma(2.0, 0.1, (40, 25)))
CODES = BELIEF.sample(1, random_state=1)[0]
SAMPLES = BELIEF.sample(30, random_state=2)
GAUSSIAN = (BELIEF.mean(), BELIEF.std())
PICTURES = [pit_histogram, reliability_diagram, coverage_curve, error_by_std]


def legend_texts(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("draw", PICTURES)
def test_given_axes_are_used_and_returned(draw):
    axes = Figure().subplots()
    assert draw(BELIEF, CODES, axes=axes) is axes


@pytest.mark.parametrize("draw", PICTURES)
def test_a_new_picture_lies_inside_its_figure(draw):
    figure = draw(BELIEF, CODES).figure
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()


@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (CODES[:, :3], r"B has shape \(40, 3\)"),
        (np.full((40, 25), np.nan), "B must be finite"),
        ([["a"]], "B must hold"),
    ],
)
def test_codes_that_cannot_be_drawn_are_refused_by_name(draw, codes, message):
    with pytest.raises(ValueError, match=message):
        draw(BELIEF, codes)


@pytest.mark.parametrize("draw", [pit_histogram, reliability_diagram, error_by_std])
@pytest.mark.parametrize("n_bins", [0, 2.5])
def test_a_count_of_bins_that_is_none_is_refused(draw, n_bins):
    with pytest.raises(ValueError, match="n_bins must be"):
        draw(BELIEF, CODES, n_bins=n_bins)


@pytest.mark.parametrize("dist", [BELIEF, GAUSSIAN, SAMPLES])
def test_bars_of_the_transform_have_mean_height_one(dist):
    axes = pit_histogram(dist, CODES, n_bins=8, random_state=3)
    places = pit(dist, CODES, random_state=3).ravel()
    heights, edges = np.histogram(places, 8, (0.0, 1.0), density=True)
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], heights)
    np.testing.assert_allclose([bar.get_x() for bar in axes.patches], edges[:-1])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1.0, 1.0])
    assert (axes.get_xlim(), axes.get_ylim()[0]) == ((0.0, 1.0), 0.0)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("probability integral transform of the truth", "density")


def test_the_band_holds_the_bars_of_calibrated_predictions():
    axes = pit_histogram(BELIEF, CODES, n_bins=20, random_state=0)
    ends = axes.collections[0].get_paths()[0].vertices[:, 1]
    low, high = ends.min(), ends.max()
    np.testing.assert_allclose([low, high], binom.ppf([0.025, 0.975], 1000, 0.05) / 50)
    inside = sum(low <= bar.get_height() <= high for bar in axes.patches)
    assert inside >= 16  # binomial(20, 0.95): less has a probability of 3e-4
    sure = pit_histogram((GAUSSIAN[0], 0.01), CODES, random_state=0)
    assert min(sure.patches[0].get_height(), sure.patches[-1].get_height()) > high


def test_one_coefficient_has_a_histogram():
    axes = pit_histogram((0.0, 1.0), 0.3, n_bins=2)
    assert [bar.get_height() for bar in axes.patches] == [0.0, 2.0]


@pytest.mark.parametrize("dist", [BELIEF, SAMPLES])
def test_reliability_is_that_of_the_metrics_with_counts_below(dist):
    axes = reliability_diagram(dist, CODES, n_bins=7)
    predicted, observed, size = reliability_curve(dist, CODES, n_bins=7)
    diagonal, points = axes.lines[:2]
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    np.testing.assert_array_equal(points.get_xdata(), predicted)
    np.testing.assert_array_equal(points.get_ydata(), observed)
    strip = axes.child_axes[-1]
    np.testing.assert_array_equal([bar.get_height() for bar in strip.patches], size)
    np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in strip.patches], predicted)
    assert strip.get_yscale() == "log"
    assert (axes.get_ylabel(), strip.get_ylabel()) == ("share that is active", "coefficients")
    assert strip.get_xlabel() == "P(active) as predicted"
    error = expected_calibration_error(dist, CODES, n_bins=7)
    assert axes.get_legend().get_title().get_text() == f"expected calibration error {error:.3f}"


def test_error_bars_of_shares_are_exact_binomial_intervals():
    dist = SpikeSlab([0.05] * 9 + [0.55] * 9 + [0.95] * 9, 1.0, 1.0)
    codes = np.array([0.0] * 9 + [1.0] * 4 + [0.0] * 5 + [1.0] * 9)
    axes = reliability_diagram(dist, codes)
    bars = np.array(axes.collections[0].get_segments())[:, :, 1]
    exact = [binomtest(count, 9).proportion_ci(0.95, "exact") for count in (0, 4, 9)]
    np.testing.assert_allclose(bars, [(ends.low, ends.high) for ends in exact], atol=1e-12)


def test_a_gaussian_has_no_reliability():
    with pytest.raises(ValueError, match="has no atom at zero"):
        reliability_diagram(GAUSSIAN, CODES)


@pytest.mark.parametrize("dist", [BELIEF, GAUSSIAN, SAMPLES])
def test_a_curve_of_coverage_is_that_of_the_metrics_in_increasing_order(dist):
    axes = coverage_curve(dist, CODES, levels=[0.9, 0.2, 0.5], random_state=4)
    diagonal, curve = axes.lines
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    np.testing.assert_array_equal(curve.get_xdata(), [0.2, 0.5, 0.9])
    shares = [pit_coverage(dist, CODES, level, random_state=4) for level in (0.2, 0.5, 0.9)]
    np.testing.assert_array_equal(curve.get_ydata(), shares)
    assert legend_texts(axes) == ["calibrated", "predictions"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("level of the intervals", "share of coefficients inside")


def test_levels_go_from_none_to_all_by_default_and_many_have_no_marks():
    curve = coverage_curve(BELIEF, CODES).lines[1]
    np.testing.assert_allclose(curve.get_xdata(), np.arange(21) / 20)
    assert (curve.get_ydata()[-1], curve.get_marker()) == (1.0, ".")
    assert coverage_curve(BELIEF, CODES, levels=np.linspace(0.0, 1.0, 60)).lines[1].get_marker() == ""


def test_draws_at_atoms_are_the_same_for_all_levels():
    curve = coverage_curve(SpikeSlab([0.0] * 50, 0.0, 1.0), np.zeros(50), levels=np.linspace(0.0, 1.0, 200)).lines[1]
    assert (np.diff(curve.get_ydata()) >= 0.0).all()


def test_predictions_are_compared_by_name_with_a_legend():
    named = {f"method {i}": (GAUSSIAN[0], 0.1 + i) for i in range(8)}
    axes = coverage_curve(named, CODES, levels=[0.5], random_state=0)
    assert legend_texts(axes) == ["calibrated", *named]
    for line, dist in zip(axes.lines[1:], named.values(), strict=True):
        assert line.get_ydata() == [pit_coverage(dist, CODES, 0.5, random_state=0)]
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines[1:]}) == 8


@pytest.mark.parametrize(
    ("dist", "levels", "message"),
    [
        ({}, None, "dist is empty"),
        ({"good": BELIEF, "bad": (0.0, -1.0)}, None, r"dist\['bad'\]: std must be at least 0"),
        (BELIEF, [], r"levels has shape \(0,\)"),
        (BELIEF, 0.9, r"levels has shape \(\)"),
        (BELIEF, [0.5, 90], r"levels must lie in \[0, 1\]; .* index \(1,\): 90"),
        (BELIEF, [np.nan], r"levels must lie in \[0, 1\]"),
    ],
)
def test_coverage_that_cannot_be_drawn_is_refused_by_name(dist, levels, message):
    with pytest.raises(ValueError, match=message):
        coverage_curve(dist, CODES, levels)


@pytest.mark.parametrize("dist", [BELIEF, GAUSSIAN, SAMPLES])
def test_errors_by_spread_are_root_mean_squares_in_bins_of_equal_size(dist):
    if dist is SAMPLES:
        mean, std = SAMPLES.mean(axis=0), SAMPLES.std(axis=0, ddof=1)
    else:
        mean, std = GAUSSIAN
    axes = error_by_std(dist, CODES, n_bins=5)
    order = np.argsort(std, axis=None)
    bins = order.reshape(5, 200)
    diagonal, points = axes.lines
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    np.testing.assert_allclose(points.get_xdata(), np.sqrt(np.mean(std.ravel()[bins] ** 2, axis=1)))
    np.testing.assert_allclose(points.get_ydata(), np.sqrt(np.mean((mean - CODES).ravel()[bins] ** 2, axis=1)))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == axes.get_ylim()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted standard deviation", "root mean squared error")
    assert legend_texts(axes) == ["calibrated", "bins of coefficients"]


def test_equal_spreads_stay_in_one_bin():
    axes = error_by_std((0.0, 2.0), [1.0, -1.0, 1.0], n_bins=10)
    assert (axes.lines[1].get_xdata().tolist(), axes.lines[1].get_ydata().tolist()) == ([2.0], [1.0])
    axes = error_by_std((0.0, [1.0] + [2.0] * 9), np.ones(10), n_bins=10)
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [1.0, 2.0])


def test_more_bins_than_coefficients_leave_one_for_each():
    axes = error_by_std(([0.0, 0.0], [1.0, 3.0]), [0.5, 2.0], n_bins=50)
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [1.0, 3.0])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [0.5, 2.0])


def test_bins_without_spread_or_without_error_stand_at_the_edge():
    std, codes = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0]), np.array([0.3, -0.3, 0.0, 0.0, 1.5, 1.5])
    axes = error_by_std((0.0, std), codes, n_bins=3)
    _, points, edge = axes.lines
    np.testing.assert_allclose([*points.get_xdata(), *points.get_ydata()], [2.0, 1.5])
    low = axes.get_xlim()[0]
    assert 0.0 < low < 0.3
    np.testing.assert_allclose(edge.get_xdata(), [low, 1.0])
    np.testing.assert_allclose(edge.get_ydata(), [0.3, low])
    assert legend_texts(axes)[-1] == "bins with a zero, at the edge"
    axes.figure.draw_without_rendering()


def test_predictions_without_spread_or_error_are_drawn():
    axes = error_by_std((np.zeros(3), 0.0), np.zeros(3))
    assert axes.lines[1].get_xdata().size == 0
    assert axes.lines[2].get_xdata().size == 1
    axes.figure.draw_without_rendering()
