"""Runs tour.ipynb from top to bottom and saves it with its outputs.

python notebooks/run.py   (needs nbclient and ipykernel: pip install '.[notebook]')
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

path = Path(__file__).with_name("tour.ipynb")
notebook = nbformat.read(path, as_version=4)
NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
for cell in notebook.cells:
    cell.metadata.pop("execution", None)  # when each cell ran: different every time
nbformat.write(notebook, path)
