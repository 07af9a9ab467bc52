"""Bring the date model to the page: its files as one script, ``_static/dates-model.js``.

A page opened from a folder may not fetch files, but it may load a script. So the very files of
``transformer_lit/dates`` are written into one at every build, the weights in base64; the figures
"walk" of chapter 8 and "translator" of chapter 13 ask for it when a reader does.  With it comes the
font that has the Chinese characters of the dates, for movable.css.
"""

import base64
import json
import shutil
from pathlib import Path

import transformer_lit

FOLDER = Path(transformer_lit.__file__).parent / "dates"


def script():
    """Return a script that sets ``literate.datesModel`` to what the three files hold."""
    held = {
        name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("config", "tokenizer")
    }
    held["safetensors"] = base64.b64encode((FOLDER / "model.safetensors").read_bytes()).decode()
    return f'"use strict";\nliterate.datesModel = {json.dumps(held, separators=(",", ":"))};\n'


def write_model(app, exc):
    if exc or app.builder.name != "html":  # other formats have no scripts
        return
    static = Path(app.outdir) / "_static"
    (static / "dates-model.js").write_text(script(), encoding="utf-8")
    shutil.copy(FOLDER.with_suffix(".otf"), static / "fonts" / "dates.otf")


def setup(app):
    app.connect("build-finished", write_model)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
