"""Sphinx's settings; docs/build.py gathers the pages and calls it."""

import inspect
import sys
from pathlib import Path

import matplotlib
from sphinx.application import Sphinx

import bayeslista

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
matplotlib.use("agg")

project = "bayeslista"
author = "the bayeslista developers"
copyright = "the bayeslista developers, BSD-3-Clause"
version = release = bayeslista.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "mathml",
]
exclude_patterns = ["examples", "gallery/GALLERY_HEADER.rst"]
templates_path = [str(Path(__file__).parent / "_templates")]  # autosummary would look beside the pages
default_role = "autolink"  # `name` in a docstring links to it if it is known

# Pages in Markdown, which are read on their own as well.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

# What docstrings say; types are written there.
autosummary_generate = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_validation_checks: set[str] = set()

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "",
    "ignore_pattern": r"^$",
    "image_scrapers": ("figures.scrape",),
    "reset_modules": (),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "doc_module": ("bayeslista",),
    "backreferences_dir": None,
}

html_theme = "pydata_sphinx_theme"
html_title = "bayeslista"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "bayeslista"},
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "show_toc_level": 2,
}
html_sidebars = {"index": [], "start": [], "changelog": [], "contributing": []}


def _skip(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out what is inherited from other libraries, and fields that their class describes."""
    if name.endswith("_request") or (inspect.getdoc(member) or "").startswith("Alias for field number"):
        return True
    home = getattr(inspect.unwrap(member) if callable(member) else member, "__module__", "") or ""
    return True if callable(member) and home and not home.startswith("bayeslista") else None


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("autodoc-skip-member", _skip)
