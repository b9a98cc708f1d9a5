from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from bayeslista.plots import uncertainty_map

IMAGE = np.arange(12.0).reshape(3, 4)
STD = 0.1 + IMAGE / 10
TRUTH = IMAGE + np.linspace(-1.0, 2.0, 12).reshape(3, 4)


def panels(axes):
    return [axes, *axes.child_axes[1::2]]


def test_an_image_stands_beside_its_deviation_and_its_error():
    axes = uncertainty_map(IMAGE, STD, TRUTH)
    assert [panel.get_title(loc="left") for panel in panels(axes)] == ["image", "standard deviation", "absolute error"]
    for panel, values in zip(panels(axes), (IMAGE, STD, np.abs(IMAGE - TRUTH)), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), values)
        assert panel.images[0].colorbar is not None
        assert panel.images[0].get_clim() == (0.0, values.max())  # the least pixel of this image is 0 as well
    left = [panel.get_window_extent().x0 for panel in panels(axes)]
    assert left == sorted(left)


def test_without_the_truth_there_is_no_error():
    axes = uncertainty_map(IMAGE - 5.0, STD)
    assert [panel.get_title(loc="left") for panel in panels(axes)] == ["image", "standard deviation"]
    assert len(axes.child_axes) == 3
    assert axes.images[0].get_clim() == (-5.0, 6.0)


def test_given_axes_hold_the_image():
    axes = Figure().subplots()
    assert uncertainty_map(IMAGE, STD, axes=axes) is axes
    np.testing.assert_array_equal(axes.images[0].get_array(), IMAGE)


@pytest.mark.parametrize("shape", [(1, 1), (28, 28), (30, 20), (1, 100), (100, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_images_of_any_shape_are_drawn_inside_their_figure_without_overlap(shape, scale):
    image = scale * np.random.default_rng(0).standard_normal(shape)
    axes = uncertainty_map(image, np.abs(image), 0.0 * image)
    figure = axes.figure
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.get_figwidth()
    assert box.y1 <= figure.get_figheight()
    pieces = [child.get_tightbbox() for child in axes.child_axes]
    assert all(before.x1 < after.x0 for before, after in pairwise(pieces))
    assert axes.get_window_extent().x1 < pieces[0].x0


def test_pixels_are_square_unless_an_image_is_long():
    for shape, ratio in (((30, 20), 1.5), ((2, 100), 0.5), ((100, 2), 2.0)):
        assert uncertainty_map(np.ones(shape), np.ones(shape)).get_box_aspect() == ratio


def test_images_that_are_flat_or_certain_are_drawn():
    uncertainty_map(np.ones((2, 2)), np.zeros((2, 2)), np.ones((2, 2))).figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": IMAGE.ravel()}, r"image has shape \(12,\); it must be \(height, width\)"),
        ({"image": IMAGE[:0]}, r"image has shape \(0, 4\)"),
        ({"image": IMAGE * np.nan}, "image must be finite"),
        ({"image": [["a"]]}, "image must hold real numbers"),
        ({"std": STD.T}, r"std has shape \(4, 3\) and image \(3, 4\)"),
        ({"std": 0.1}, r"std has shape \(\)"),
        ({"std": -STD}, "std must be at least 0"),
        ({"std": STD + np.inf}, "std must be finite"),
        ({"truth": TRUTH[:2]}, r"truth has shape \(2, 4\) and image \(3, 4\)"),
        ({"truth": TRUTH * np.nan}, "truth must be finite"),
    ],
)
def test_images_that_cannot_be_drawn_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        uncertainty_map(**{"image": IMAGE, "std": STD, **options})
