"""Notebooks without Jupyter: run their cells, keep the outputs, and show them as pages of the site.

    python docs/notebooks.py            runs every notebook of docs/notebooks and writes its outputs into it

As a hook of mkdocs this module turns each notebook into a page. The tests run the cells again and rely on the
assertions in them. The files are ordinary .ipynb files, which Jupyter opens.
"""

from __future__ import annotations

import ast
import base64
import html
import json
import sys
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "notebooks"


def run(notebook: dict[str, Any], name: str) -> dict[str, object]:
    """Run the code cells in one namespace and put what they print and return into the notebook."""
    names: dict[str, object] = {"__name__": name}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        text = StringIO()
        with redirect_stdout(text):
            value = run_cell("".join(cell["source"]), names, f"{name}, cell {count}")
        cell["execution_count"] = count
        cell["outputs"] = outputs(text.getvalue(), value, count)
    return names


def run_cell(source: str, names: dict[str, object], where: str) -> object:
    """Run a cell; the value of its last line if that is an expression."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), where, "eval"), names)


def outputs(text: str, value: object, count: int) -> list[dict[str, Any]]:
    """What a cell printed and returned, as notebooks store it."""
    found: list[dict[str, Any]] = []
    if text:
        found.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "savefig"):
            file = BytesIO()
            value.savefig(file, format="png", dpi=90)
            data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
        elif hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found


def page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    parts.append(
        f"---\n\nThis page is the notebook `docs/notebooks/{name}.ipynb`; its assertions are part of the tests."
    )
    return "\n\n".join(parts)


def shown(output: dict[str, Any]) -> str:
    """One output as Markdown or HTML."""
    if output["output_type"] == "stream":
        return f'<pre class="output">{html.escape("".join(output["text"]).rstrip())}</pre>'
    data = output["data"]
    if "image/png" in data:
        return (
            f'<img class="output" alt="figure made by the cell above" src="data:image/png;base64,{data["image/png"]}">'
        )
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return f'<pre class="output">{html.escape("".join(data["text/plain"]))}</pre>'


def on_files(files: Any, config: Any) -> Any:
    """A hook of mkdocs: every notebook becomes a page."""
    from mkdocs.structure.files import File

    for path in sorted(FOLDER.glob("*.ipynb")):
        text = page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        existing = files.get_file_from_path(f"notebooks/{path.name}")
        if existing is not None:
            files.remove(existing)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def main() -> None:
    """Run all notebooks, or those named, and write their outputs."""
    import matplotlib

    matplotlib.use("agg")
    chosen = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for name in chosen:
        path = FOLDER / f"{name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run(notebook, name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path}: {sum(cell['cell_type'] == 'code' for cell in notebook['cells'])} cells")


if __name__ == "__main__":
    main()
