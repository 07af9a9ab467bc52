// Scale and softmax: one query of 02_attention and its 16 keys, whose width d_k grows from 1 to
// 1024. Left the scores as they are, right divided by the root of d_k; below, how much gradient
// gets through the softmax, on average over many queries.
"use strict";
{
  const { dot, sum, softmax, path, number } = literate;

  // What the figure says of the scores of one query: weights, entropy in bits, and the size of the
  // matrix of derivatives w_i (delta_ij - w_j), the root of the sum of its squared entries.
  literate.saturation = (scores) => {
    const weights = softmax(scores);
    const entropy = -sum(weights.map((w) => (w > 0 ? w * Math.log2(w) : 0)));
    const squares = weights.flatMap((wi, i) => weights.map((wj, j) => (wi * ((i === j) - wj)) ** 2));
    return { weights, entropy, largest: Math.max(...weights), derivative: Math.sqrt(sum(squares)) };
  };

  // A panel: bars of the scores, up to `top` in size, and of the weights, up to 1.
  const STEP = 16,
    SCORES = 96,
    WEIGHTS = 100;
  const panel = (title, kind, keys) => {
    const { html, svg, set } = literate;
    const bars = (name) => keys.map((_, j) => svg("rect", { x: STEP * j + 2, width: STEP - 4, class: name }));
    const scores = bars("score"),
      weights = bars(kind);
    const drawing = (height, levels, rects) =>
      svg(
        "svg",
        { viewBox: `0 0 ${STEP * keys.length} ${height}`, "aria-hidden": "true" },
        ...levels.map((y) => svg("line", { x1: 0, x2: STEP * keys.length, y1: y, y2: y, class: "rule" })),
        ...rects,
      );
    const range = html("p", { class: "muted" });
    const numbers = ["largest weight", "entropy (at most 4 bits)", "size of the derivative"].map((name) => [
      name,
      html("td", { class: "number" }),
    ]);
    const element = html(
      "div",
      { class: "panel" },
      html("p", { class: "head" }, title),
      range,
      drawing(SCORES, [SCORES / 2], scores),
      html("p", { class: "muted" }, "weights, axis to 1"),
      drawing(WEIGHTS + 2, [1, WEIGHTS + 1], weights),
      html("table", {}, ...numbers.map(([name, cell]) => html("tr", {}, html("th", { scope: "row" }, name), cell))),
    );
    return {
      element,
      draw(values, top) {
        const state = literate.saturation(values);
        range.textContent = `scores, axis to ± ${number(top, top < 10 ? 1 : 0)}`;
        values.forEach((score, j) => {
          const height = (SCORES / 2) * (Math.abs(score) / top);
          set(scores[j], { y: score > 0 ? SCORES / 2 - height : SCORES / 2, height });
          const weight = WEIGHTS * state.weights[j];
          set(weights[j], { y: WEIGHTS + 1 - weight, height: weight });
        });
        [state.largest, state.entropy, state.derivative].forEach((x, i) => (numbers[i][1].textContent = number(x, 3)));
        return state;
      },
    };
  };

  literate.figures.scale = (element, { widths, dots, with_scale, without }) => {
    const { html, svg, set } = literate;
    const last = widths.length - 1;
    const ordinals = ["first", "second", "third", "fourth"];
    const width = literate.slider({
      label: "width dₖ",
      min: 0,
      max: last,
      value: widths.indexOf(4),
      say: (i) => String(widths[i]),
      change: () => draw(),
    });
    const sample = literate.choice({
      label: "query",
      options: dots.map((_, i) => [i, ordinals[i]]),
      value: 0,
      change: () => draw(),
    });
    const bare = panel("as they are", "bare", dots[0]);
    const scaled = panel("divided by √dₖ", "scaled", dots[0]);
    const report = literate.report();

    // The curves: one point for each width, equally far apart, since the axis is logarithmic.
    const x = (w) => 44 + 49 * Math.log2(w);
    const y = (size) => 150 - 330 * size;
    const curve = (sizes) => path(widths.map((w, i) => [x(w), y(sizes[i])]));
    const marker = svg("line", { y1: 10, y2: 150, class: "marker" });
    const marks = ["scaled", "bare"].map((kind) => svg("circle", { r: 5, class: kind }));
    const ticks = [1, 4, 16, 64, 256, 1024].map((w) =>
      svg("text", { x: x(w), y: 170, "text-anchor": "middle", class: "muted" }, String(w)),
    );
    const levels = [0, 0.2, 0.4].flatMap((size) => [
      svg("line", { x1: x(1), x2: x(1024), y1: y(size), y2: y(size), class: "rule" }),
      svg("text", { x: 38, y: y(size) + 5, "text-anchor": "end", class: "muted" }, size.toFixed(1)),
    ]);
    const curves = html(
      "div",
      { class: "curves" },
      html("p", { class: "head" }, "size of the derivative, mean of 500 queries, against dₖ"),
      svg(
        "svg",
        { viewBox: "0 0 560 176", "aria-hidden": "true" },
        ...levels,
        ...ticks,
        marker,
        svg("path", { d: curve(with_scale), class: "scaled curve" }),
        svg("path", { d: curve(without), class: "bare curve" }),
        ...marks,
        svg("text", { x: x(1024), y: y(with_scale[last]) - 9, "text-anchor": "end" }, "divided"),
        svg("text", { x: x(40), y: y(0.12), "text-anchor": "end" }, "as they are"),
      ),
    );

    const draw = () => {
      const w = widths[width.value];
      const scores = dots[sample.value].map((key) => key[width.value]);
      const top = 3.5 * Math.sqrt(w); // nearly all scores are smaller
      const reach = Math.max(top, ...scores.map(Math.abs));
      const left = bare.draw(scores, reach);
      const right = scaled.draw(
        scores.map((score) => score / Math.sqrt(w)),
        reach / Math.sqrt(w),
      );
      set(marker, { x1: x(w), x2: x(w) });
      [with_scale, without].forEach((sizes, i) => set(marks[i], { cx: x(w), cy: y(sizes[width.value]) }));
      report.say(
        `At a width of ${w}, the largest of 16 weights is ${number(left.largest)} as they are and ${number(right.largest)} divided. ` +
          `The derivative has the size ${number(left.derivative)} and ${number(right.derivative)} for this query, ` +
          `${number(without[width.value])} and ${number(with_scale[width.value])} on average.`,
      );
    };
    draw();
    element.append(
      html("div", { class: "controls" }, width.element, sample.element),
      html("div", { class: "panels" }, bare.element, scaled.element),
      curves,
      report.element,
    );
  };
}
