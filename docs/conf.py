# SPDX-License-Identifier: Apache-2.0
"""Sphinx: ``sphinx-build -W --keep-going docs build/docs``. Needs gpuscope installed, no network and no GPU."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx import addnodes

import gpuscope

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "extensions"))

project = "gpuscope"
author = "the authors of gpuscope"
version = release = gpuscope.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
exclude_patterns = ["recordings/README.md", "README.md"]
html_theme = "furo"
html_title = "gpuscope"
html_static_path = ["pictures"]
html_css_files = ["gallery.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

default_role = "code"  # docstrings set names in single backticks
autodoc_mock_imports = ["lightning", "transformers"]  # bases of the callbacks; the pages need neither
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
pygments_style = "default"
highlight_language = "text"
smartquotes = False


def write_gallery(app: Sphinx) -> None:
    """The report page of each recording, beside the page that shows them."""
    if app.builder.format == "html":
        folder = Path(app.outdir) / "gallery"
        folder.mkdir(parents=True, exist_ok=True)
        for recording in sorted((DOCS / "recordings").glob("*.gscope")):
            gpuscope.load(recording).report(folder / f"{recording.stem}.html")


def leave_builtins(app: Sphinx, page: nodes.document) -> None:
    """Python's own types link nowhere: Sphinx would take an attribute of that name, as `bytes`, for them."""
    for link in list(page.findall(addnodes.pending_xref)):
        if link["refdomain"] == "py" and link["reftarget"] in vars(builtins):
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_gallery)
    app.connect("doctree-read", leave_builtins)
