// Figure of chapter 14: the recorded attention of the date model. Left the tokens that ask, right
// those that are looked at, and a line for each weight.
"use strict";

{
  const KINDS = {
    cross: "cross-attention",
    encoder: "encoder self-attention",
    decoder: "decoder self-attention",
  };
  const MEAN = "mean";
  const FAINT = 0.02; // lines of less weight are not drawn

  // The weights (t, s) of one head, counted from 1, or a mean over heads or layers; n, h, t, s.
  literate.headWeights = (weights, layer, head) => {
    const pick = (list, number) => (number === MEAN ? list : [list[number - 1]]);
    const maps = pick(weights, layer).flatMap((heads) => pick(heads, head));
    return maps[0].map((row, t) => row.map((_, s) => literate.sum(maps.map((map) => map[t][s])) / maps.length));
  };

  // How many places weights are spread over: the exponential of their entropy.
  literate.places = (row) => Math.exp(-literate.sum(row.map((w) => (w > 0 ? w * Math.log(w) : 0))));

  const read = (weights) => weights.map((heads) => heads.map((map) => map.map(literate.fractions)));

  literate.figures.heads = (element, { sentences }) => {
    const first = sentences[0].cross.weights;
    const numbers = (n) => Array.from({ length: n }, (_, i) => [String(i + 1), String(i + 1)]);
    const change = () => draw();
    const choice = (label, value, options) => literate.choice({ label, value, options, change });
    const dates = sentences.map(({ source }, i) => [String(i), source]);
    const sentence = choice("Sentence", "0", dates);
    const kind = choice("Kind", "cross", Object.entries(KINDS));
    const layer = choice("Layer", MEAN, [...numbers(first.length), [MEAN, "mean of all"]]);
    const head = choice("Head", MEAN, [...numbers(first[0].length), [MEAN, "mean of all"]]);
    const queries = literate.tokens({
      label: "asks", change: () => look(queries.value), look: (t) => look(t),
    });
    const lines = literate.svg("svg", { "aria-hidden": "true", preserveAspectRatio: "none" });
    const keys = literate.html("ol", {});
    const looked = literate.html("section", {}, literate.html("p", { class: "heading" }, "is looked at"), keys);
    const report = literate.report();
    let map, names; // weights (t, s), and the names of queries and keys

    // Light up what query t looks at.
    const look = (t) => {
      const line = (w, i, s) => literate.svg("path", {
        d: `M0 ${i + 0.5}C50 ${i + 0.5} 50 ${s + 0.5} 100 ${s + 0.5}`,
        class: i === t ? "on" : "",
        "stroke-width": 1 + 7 * w,
      });
      const linesOf = (i) => map[i].flatMap((w, s) => (w < FAINT ? [] : [line(w, i, s)]));
      const others = [...map.keys()].filter((i) => i !== t);
      lines.replaceChildren(...[...others, t].flatMap(linesOf)); // the lit ones on top
      keys.replaceChildren(...names.keys.map((name, s) =>
        literate.html("li", { style: `--share: ${map[t][s]}` },
          literate.html("span", {}, name), literate.html("i", {}), literate.number(map[t][s], 3))));
      const best = map[t].indexOf(Math.max(...map[t]));
      const weight = literate.number(map[t][best], 3);
      const spread = `${literate.number(literate.places(map[t]), 1)} of the ${names.keys.length} places`;
      report.say(
        `“${names.queries[t]}” looks most at “${names.keys[best]}”, with a weight of ${weight}. ` +
          `The weights are as spread out as even ones over ${spread}.`,
      );
    };

    const draw = () => {
      names = sentences[Number(sentence.value)][kind.value];
      map = literate.headWeights(read(names.weights), layer.value, head.value);
      const rows = Math.max(names.queries.length, names.keys.length);
      element.style.setProperty("--rows", rows);
      literate.set(lines, { viewBox: `0 0 100 ${rows}` });
      const chosen = Math.max(0, queries.value);
      queries.fill(names.queries);
      queries.set(Math.min(chosen, names.queries.length - 1));
      queries.element.lastChild.lang = kind.value === "encoder" ? "en" : "zh-Hans";
      keys.lang = kind.value === "decoder" ? "zh-Hans" : "en";
      look(queries.value);
    };

    element.append(
      literate.html("div", { class: "controls" }, sentence.element, kind.element, layer.element, head.element),
      literate.html("div", { class: "looking" }, queries.element, lines, looked),
      report.element,
    );
    draw();
  };
}
