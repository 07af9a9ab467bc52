"""Bind the built book into one volume: ``python tools/volume pdf`` or ``... epub``."""

import importlib
import sys
import time

import pages


def main(kind: str) -> None:
    start = time.time()
    if not pages.HTML.is_dir():
        sys.exit("make: no book in _build/html to bind; run `make book` first")
    file = pages.ROOT / f"_build/{kind}/the-literate-transformer.{kind}"
    binder = importlib.import_module({"pdf": "paper", "epub": "epub"}[kind])
    about = pages.about()
    amount = binder.bind(pages.read(), about, file)
    size = file.stat().st_size / 1e6
    print(f"{file.relative_to(pages.ROOT)}: {amount}, {size:.1f} MB, {time.time() - start:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:] not in (["pdf"], ["epub"]):
        sys.exit("usage: python tools/volume pdf|epub")
    main(sys.argv[1])
