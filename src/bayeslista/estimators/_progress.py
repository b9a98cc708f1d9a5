"""How far learning has come, for those who watch."""

import sys

from tqdm import tqdm


def progress_bar(total: int, description: str, verbose: int) -> tqdm:
    """Make a progress bar on the standard error, silent unless `verbose` is at least 1.

    Call ``advance(bar, nmse)`` after every pass.

    Parameters
    ----------
    total : int
        How many passes there are at most.
    description : str
        What is being trained.
    verbose : int
        Whether to show it.

    Returns
    -------
    tqdm.tqdm
        A context manager.

    Examples
    --------
    >>> from bayeslista.estimators._progress import advance, progress_bar
    >>> with progress_bar(3, "LISTA", verbose=0) as bar:
    ...     for error in (0.9, 0.8, 0.7):
    ...         advance(bar, error)
    """
    return tqdm(total=total, desc=description, unit="pass", disable=verbose < 1, file=sys.stderr)


def advance(bar: tqdm, nmse: float) -> None:
    """Move a progress bar one pass on and show the running NMSE.

    Parameters
    ----------
    bar : tqdm.tqdm
        From `progress_bar`.
    nmse : float
        The normalised error after this pass.

    Examples
    --------
    >>> from bayeslista.estimators._progress import advance, progress_bar
    >>> with progress_bar(1, "LISTA", verbose=0) as bar:
    ...     advance(bar, 0.5)
    """
    bar.set_postfix(nmse=f"{nmse:.4f}", refresh=False)
    bar.update()
