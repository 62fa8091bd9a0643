"""How `make docs` builds the site: one tree of Markdown that reads the same on a code host and here.

The source folder is the repository's root, so that relative links between the pages, README.md and the examples need no
rewriting. Every warning, a link that leads nowhere among them, ends the build.
"""

from pathlib import Path

project = "pcn"
author = "the pcn contributors"
copyright = author
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
python_maximum_signature_line_length = 88
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
root_doc = "docs/index"
include_patterns = ["docs/*.md", "*.md"]
exclude_patterns = [".*", "build", "dist", "data", "runs", "src", "tests", "experiments", "benchmarks", "notebooks"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "pcn"
html_static_path = ["_static"]
html_css_files = ["pcn.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "github-dark"
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {
        "color-brand-primary": "#0b6e99",
        "color-brand-content": "#0b6e99",
        "color-brand-visited": "#0b6e99",
    },
    "dark_css_variables": {
        "color-brand-primary": "#5cc3ee",
        "color-brand-content": "#5cc3ee",
        "color-brand-visited": "#5cc3ee",
    },
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    app.connect("build-finished", _front_door)


def _front_door(app, error):
    """Pages lie under docs/ as in the repository; the folder's own index.html leads to the first of them."""
    if error is None and app.builder.name == "html":
        go = '<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">pcn</a>'
        page = f'<!doctype html><meta charset="utf-8"><title>pcn</title>{go}\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")
