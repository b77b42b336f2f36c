"""The site: the project's own Markdown, as it lies in the tree, with a catalogue and a reference made at the build.

The tree itself is the source, so a link is right on a code host and on the site alike. Build it with `tox -e docs`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from catalogue import write_catalogue
from docstrings import as_restructured
from navigation import with_navigation
from reference import write_reference
from sphinx.application import Sphinx

import rebinding

project = "rebinding"
version = release = rebinding.__version__
extensions = ["sphinx.ext.autodoc", "myst_nb"]
include_patterns = ["*.md", "docs/**.md", "docs/tutorials/**.ipynb", "benchmarks/*.md", "rebinding/planted/*.md"]
exclude_patterns = [".*"]  # environments and stores, which need not be walked through
root_doc = "README"

html_theme = "furo"
html_title = "rebinding: an executable paper"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4
nb_execution_mode = (
    "off"  # tests/docs/test_tutorials.py executes them, and holds what they print against what is stored
)

default_role = "code"
highlight_language = "none"  # a block that does not say what it is is text
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
suppress_warnings = ["ref.python"]  # two classes of one name: a signature cannot say which it means


def _make(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "docs" / "made"
    folder.mkdir(exist_ok=True)
    write_catalogue(folder)
    write_reference(folder)


def setup(app: Sphinx) -> None:
    """Make what is made, and put the navigation on the first page."""
    app.connect("builder-inited", _make, priority=1)
    app.connect("source-read", with_navigation)
    app.connect("autodoc-process-docstring", as_restructured)
