"""Codes of real signals, and their observations: digits, patches of photographs, and electrocardiograms."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.fft import dctn
from sklearn.utils import Bunch

from bayeslista.datasets import load_mnist_codes, make_sparse_codes

LEAST_CONTRAST = 0.02  # twice the noise: sky and background that are out of focus have no code but noise
SHARED = Path(__file__).parents[2] / "shared"


def _observed(train: Any, test: Any, X: Any, noise_std: float, random: np.random.Generator) -> Bunch:
    data = Bunch(design_matrix=X, B_train=train, B_test=test)
    for part in ("train", "test"):
        clean = data[f"B_{part}"] @ X.T
        data[f"Y_{part}"] = clean + noise_std * random.standard_normal(clean.shape)
    return data


def photographs() -> list[tuple[np.ndarray, ...]]:
    """Grey images in [0, 1], to learn from and to test: scikit-image's, or else halves of those of scikit-learn."""
    try:
        from skimage import color
        from skimage import data as images

        return [(images.camera() / 255.0, images.coins() / 255.0), (color.rgb2gray(images.astronaut()),)]
    except ImportError:
        from sklearn.datasets import load_sample_images

        grey = [image @ np.array([0.299, 0.587, 0.114]) / 255 for image in load_sample_images().images]
        middle = grey[0].shape[1] // 2
        return [tuple(image[:, :middle] for image in grey), tuple(image[:, middle:] for image in grey)]


def patches(n_observed: int, n_train: int, seed: int, n_test: int = 200) -> Bunch:
    """8 × 8 patches in the cosine basis without the mean, 63 coefficients, of different images for test."""
    random = np.random.default_rng(seed)

    def codes(images: tuple[np.ndarray, ...], n: int) -> Any:
        found = []
        while len(found) < n:
            image = images[len(found) % len(images)]
            row, column = (random.integers(size - 7) for size in image.shape)
            patch = image[row : row + 8, column : column + 8]
            if patch.std() > LEAST_CONTRAST:
                found.append(dctn(patch, norm="ortho").ravel()[1:])
        return np.array(found)

    train, test = photographs()
    B_train, B_test = codes(train, n_train), codes(test, n_test)
    X = random.standard_normal((n_observed, 63)) / np.sqrt(n_observed)
    return _observed(B_train, B_test, X, 0.01, random)


def ecg(n_train: int, seed: int) -> Bunch:
    """Windows of 64 samples of PyWavelets' record in the sym8 basis, seen by 32 random projections."""
    import pywt

    random = np.random.default_rng(seed)
    record = pywt.data.ecg().astype(np.float64)
    record = (record - record.mean()) / record.std()
    half = 600

    def windows(part: Any, n: int) -> Any:
        starts = random.integers(len(part) - 63, size=n)
        return np.array(
            [np.concatenate(pywt.wavedec(part[s : s + 64], "sym8", mode="periodization", level=2)) for s in starts]
        )

    B_train, B_test = windows(record[:half], n_train), windows(record[half:], 100)
    X = random.standard_normal((32, 64)) / np.sqrt(32)
    return _observed(B_train, B_test, X, 0.01, random)


def mit_bih(seed: int, n_train: int = 400, n_test: int = 100) -> Bunch:
    """Record 100 of MIT-BIH, blocks of 256 samples, 128 sparse measurements, noise of one ADC unit."""
    import pywt

    random = np.random.default_rng(seed)
    signal = np.load(SHARED / "data" / "ecg100.npz")["adc"].astype(np.float64) - 1024
    blocks = signal[: len(signal) // 256 * 256].reshape(-1, 256)
    half = len(blocks) // 2
    chosen = random.permutation(half)[:n_train], half + random.permutation(len(blocks) - half)[:n_test]

    def codes(rows: Any) -> Any:
        return np.concatenate(pywt.wavedec(rows, "sym8", mode="periodization", level=5), axis=-1)

    synthesis = np.linalg.inv(codes(np.eye(256)).T)
    sensing = np.zeros((128, 256))
    for column in sensing.T:
        column[random.permutation(128)[:4]] = 0.5
    return _observed(*(codes(blocks[rows]) for rows in chosen), sensing @ synthesis, 1.0, random)


def problems(names: list[str], seed: int, n_train: int | None = None) -> dict[str, Bunch]:
    """Data by the names of the problems; `n_train` replaces the usual number of pairs."""
    usual = {
        "patches 25 %": lambda: patches(16, n_train or 800, seed),
        "patches 50 %": lambda: patches(32, n_train or 800, seed),
        "ECG": lambda: ecg(n_train or 400, seed),
        "MIT-BIH": lambda: mit_bih(seed, n_train or 400),
        "MNIST 100": lambda: load_mnist_codes(100, n_train or 100, 100, random_state=seed),
        "MNIST 250": lambda: load_mnist_codes(250, n_train or 100, 100, random_state=seed),
        "exchangeable": lambda: make_sparse_codes(n_train or 1000, 100, random_state=seed),
    }
    return {name: usual[name]() for name in names}
