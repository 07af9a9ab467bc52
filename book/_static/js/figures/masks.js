// Masks, as in 07_decoder: which word may attend to which, for a target and a source that the
// reader types. True means "may attend", in every mask.
"use strict";
{
  const BOS = "<bos>",
    PAD = "<pad>";
  const MOST_WORDS = 10,
    MOST_PADDING = 4,
    MOST_LETTERS = 8; // more could not be read in a grid

  // The first words of a text, cut at spaces; each Chinese or Japanese character is a word. One
  // word more than are shown is returned, if there is one.
  const WORD =
    /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+/gu;
  literate.words = (text, most = MOST_WORDS) => {
    const words = [];
    for (const [word] of text.matchAll(WORD)) if (words.push(word) > most) break;
    return words;
  };

  // A word as it stands at the edge of a grid: cut after so many letters, never within one (an
  // emoji of several parts is one letter).
  const letters = (text) =>
    window.Intl?.Segmenter ? Array.from(new Intl.Segmenter().segment(text), (part) => part.segment) : Array.from(text);
  literate.shortened = (word) => {
    if (!/[^\p{C}\p{M}\p{Z}]/u.test(word)) return "(unseen)"; // signs that leave no mark
    const all = letters(word.slice(0, 20 * MOST_LETTERS).replace(/(\p{M}{4})\p{M}+/gu, "$1")); // no tower of accents
    return all.length > MOST_LETTERS ? `${all.slice(0, MOST_LETTERS - 1).join("")}…` : all.join("");
  };

  // The masks: rows are queries, columns are keys.
  literate.causalMask = (t) => Array.from({ length: t }, (_, i) => Array.from({ length: t }, (_, j) => j <= i));
  literate.paddingMask = (tokens, t) => Array.from({ length: t }, () => tokens.map((token) => token !== PAD));
  literate.joined = (a, b) => a.map((row, i) => row.map((may, j) => may && b[i][j]));

  // What a query may attend to, in words, as `describe_mask` says it: a word that occurs twice has
  // its place behind it.
  literate.mayAttendTo = (row, keys) => {
    const seen = keys.map((key, j) => (keys.indexOf(key) !== keys.lastIndexOf(key) ? `${key}[${j}]` : key));
    return seen.filter((_, j) => row[j]).join(" ") || "nothing";
  };

  // A mask as a drawing, with the words at its edges. It is made of few parts, however many cells
  // it has: one path for what is allowed, one for what is forbidden.
  const CELL = 18;
  const pen = document.createElement("canvas").getContext("2d"); // measures words, as no count of letters can
  const grid = (mask, queries, keys) => {
    const { svg } = literate;
    pen.font = `650 12px ${getComputedStyle(document.body).fontFamily}`;
    const edge = (words) => 12 + Math.ceil(Math.max(...words.map((word) => pen.measureText(word).width))); // for the longest
    const left = edge(queries),
      top = edge(keys);
    const width = left + CELL * keys.length + 1,
      height = top + CELL * queries.length + 1;
    const cells = (may, shape) =>
      mask
        .flatMap((row, i) => row.map((cell, j) => (cell === may ? shape(left + CELL * j, top + CELL * i) : "")))
        .join("");
    const frame = svg("rect", { x: 1, width: width - 2, height: CELL, class: "frame" });
    const rows = queries.map((word, i) =>
      svg("text", { x: left - 6, y: top + CELL * i + 13, "text-anchor": "end" }, word),
    );
    const columns = keys.map((word, j) =>
      svg("text", { transform: `translate(${left + CELL * j + 13} ${top - 6}) rotate(-90)` }, word),
    );
    const element = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px`, "aria-hidden": "true" },
      svg("path", { class: "not", d: cells(false, (x, y) => `M${x} ${y + CELL}l${CELL} ${-CELL}`) }),
      svg("path", { class: "may", d: cells(true, (x, y) => `M${x} ${y}h${CELL}v${CELL}h${-CELL}Z`) }),
      svg("path", { class: "rule", d: cells(false, (x, y) => `M${x} ${y}h${CELL}v${CELL}h${-CELL}Z`) }),
      ...rows,
      ...columns,
      frame,
    );
    return {
      element,
      width,
      row: (event) => {
        // the one under a pointer
        const box = element.getBoundingClientRect();
        const i = Math.floor((((event.clientY - box.y) / box.height) * height - top) / CELL);
        return i >= 0 && i < queries.length ? i : undefined;
      },
      look(i) {
        rows.forEach((text, n) => text.classList.toggle("looked-at", n === i));
        literate.set(frame, { y: top + CELL * i });
      },
    };
  };

  literate.figures.masks = (element, start) => {
    const { html } = literate;
    const renew = () => draw();
    const text = (label, value) => literate.textInput({ label, value, change: renew });
    const slider = (label, max, value, change, say) => literate.slider({ label, min: 0, max, value, change, say });
    const target = text("target", start.target),
      source = text("source", start.source);
    const targetPadding = slider("padding of the target", MOST_PADDING, start.target_padding, renew);
    const sourcePadding = slider("padding of the source", MOST_PADDING, start.source_padding, renew);
    let queries = []; // the words of the target, one for each row
    const row = slider(
      "row, a query",
      MOST_WORDS + MOST_PADDING,
      2,
      () => point(),
      (i) => `${i} ${queries[i]}`,
    );
    const note = html("p", { class: "note", role: "status" });
    const report = literate.report({ visible: false });
    const names = [
      "causal",
      "padding of the target",
      "both joined: self-attention",
      "padding of the source: cross-attention",
    ];
    const panels = names.map((name) => {
      const panel = { name, line: html("bdi", {}), picture: html("div", {}) };
      const choose = (event) => {
        const i = panel.grid.row(event);
        if (i === undefined || i === row.value) return;
        row.set(i);
        point();
      };
      panel.element = html(
        "div",
        { class: "grid", onpointermove: choose, onpointerdown: choose },
        html("p", { class: "head" }, name),
        panel.picture,
      );
      return panel;
    });
    const table = html(
      "table",
      { class: "lines" },
      ...panels.map(({ name, line }) => html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, line))),
    );

    const draw = () => {
      const typed = [target, source].map((input) => literate.words(input.value));
      const [to, from] = typed.map((words) =>
        words.slice(0, MOST_WORDS).map((word) => (word === PAD ? PAD : literate.shortened(word))),
      );
      const padding = (slider) => Array(slider.value).fill(PAD);
      queries = [BOS, ...to, ...padding(targetPadding)];
      const keys = [...from, ...padding(sourcePadding)];
      const t = queries.length;
      const causal = literate.causalMask(t),
        own = literate.paddingMask(queries, t);
      const masks = [causal, own, literate.joined(causal, own), literate.paddingMask(keys, t)];
      panels.forEach((panel, n) => {
        panel.mask = masks[n];
        panel.keys = n < 3 ? queries : keys;
        panel.grid = grid(panel.mask, queries, panel.keys.length ? panel.keys : [""]);
        panel.picture.replaceChildren(panel.grid.element);
        panel.element.style.width = `${Math.max(panel.grid.width, 146)}px`; // room for its name
      });
      row.limit(t - 1);
      note.textContent = [
        typed.some((words) => words.length > MOST_WORDS) &&
          `Only the first ${MOST_WORDS} words of a sentence are shown.`,
        !keys.length && "The source is empty, so there is nothing to attend to.",
        keys.length &&
          keys.every((key) => key === PAD) &&
          "The source is nothing but padding: every query may attend to nothing.",
      ]
        .filter(Boolean)
        .join(" ");
      point();
    };

    const point = () => {
      const i = row.value;
      const words = panels.map(({ grid, mask, keys, line }) => {
        grid.look(i);
        line.textContent = literate.mayAttendTo(mask[i], keys);
        return line.textContent;
      });
      report.say(
        `Query ${i}, ${queries[i]}, may attend to ${words[2]} in the target, and to ${words[3]} in the source.`,
      );
    };

    draw();
    element.append(
      html("div", { class: "controls" }, target.element, targetPadding.element, source.element, sourcePadding.element),
      note,
      html("div", { class: "grids" }, ...panels.map((panel) => panel.element)),
      row.element,
      html("p", { class: "head" }, "This query may attend to"),
      table,
      report.element,
    );
  };
}
