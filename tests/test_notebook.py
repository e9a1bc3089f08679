"""The notebook of examples/ runs from its first cell to its last, as it is written."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "folder_to_model.ipynb"


def cells() -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return content["cells"]


def run_cell(code: str, names: dict[str, Any], where: str) -> Any:
    """As a notebook does: the value of the last line, if it is one."""
    tree = ast.parse(code, where)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), where, "eval"), names)


def test_it_is_stored_without_what_a_run_left() -> None:
    for cell in cells():
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    ids = [cell["id"] for cell in cells()]
    assert len(set(ids)) == len(ids)


def test_every_link_leads_somewhere() -> None:
    text = "".join(line for c in cells() if c["cell_type"] == "markdown" for line in c["source"])
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((NOTEBOOK.parent / link).is_file() for link in links)


@pytest.mark.usefixtures("quick_lookahead")
def test_it_runs_from_a_folder_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for i, cell in enumerate(cells()):
        if cell["cell_type"] == "code":
            value = run_cell("".join(cell["source"]), names, f"cell {i}")
            shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else value)
    assert names["tuned"].scores.accuracy > 0.7 and names["prediction"] in ("flower", "temple")
    assert "operation" in shown[1] and "uniform" in shown[3]
    assert (tmp_path / "runs" / "tuned" / "model.safetensors").is_file()
