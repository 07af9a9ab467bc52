// Results show the lines that were found. From a folder a page may not read others, so they go without.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// An exercise stands in its chapter and again where its check is shown: the chapter comes first.
Scorer.score = ([page, , , , score]) => (page.startsWith("nbs/checks/") ? score - 20 : score);

// Sphinx looks words up in plain objects, which have two answers of their own.
for (const words of [Search._index.terms, Search._index.titleterms]) {
  for (const word of ["constructor", "__proto__"]) {
    if (!Object.hasOwn(words, word)) Object.defineProperty(words, word, { value: undefined });
  }
}
