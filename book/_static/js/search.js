// Results show the lines that were found. From a folder a page may not read others, so they go without.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// An exercise stands in its chapter and again where its check is shown: the chapter comes first.
Scorer.score = ([page, , , , score]) => (page.startsWith("nbs/checks/") ? score - 20 : score);
