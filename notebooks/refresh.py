"""Run notebooks again and save their outputs: `python notebooks/refresh.py [NAME...]`.

Notebooks use temporary folders; their paths are removed from the saved outputs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/scrlm-\w+/?")


def refresh(path: Path) -> None:
    """Execute a notebook in place."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    client.execute(cwd=path.parent)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cleaned = json.loads(_TEMPORARY.sub("", json.dumps(cell.outputs)))
            cell.outputs = [nbformat.from_dict(output) for output in cleaned]
    # The kernel's description of itself differs between machines.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    folder = Path(__file__).parent
    names = sys.argv[1:] or sorted(path.name for path in folder.glob("*.ipynb"))
    for name in names:
        refresh(folder / name)
