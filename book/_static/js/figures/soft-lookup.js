// Soft look-up: a query among the books of 02_attention. The triangle shows in which proportions
// query, keys and answer are made of three things; the table shows scores and weights.
"use strict";
{
  // Scores, weights and the answer, as in the chapter; `factor` multiplies the scores.
  literate.softLookUp = (query, keys, values, factor = 1) => {
    const scores = keys.map((key) => factor * literate.dot(query, key));
    const weights = literate.softmax(scores);
    const answer = values[0].map((_, i) => literate.sum(values.map((value, j) => weights[j] * value[i])));
    return { scores, weights, answer };
  };

  // Where a vector lies in the triangle: the mean of the corners, weighted by its entries.
  const CORNERS = [
    [34, 258],
    [180, 30],
    [326, 258],
  ];
  const CENTRE = [1, 1, 1];
  const place = (vector) => {
    const shares = literate.sum(vector) > 0 ? vector : CENTRE;
    return [0, 1].map(
      (axis) =>
        literate.dot(
          shares,
          CORNERS.map((c) => c[axis]),
        ) / literate.sum(shares),
    );
  };

  // The other way round: the shares, adding up to 1, of a point; outside, of a point on the edge.
  const shares = (x, y) => {
    const [[ax, ay], [bx, by], [cx, cy]] = CORNERS;
    const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
    const a = ((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / area;
    const b = ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / area;
    const inside = [a, b, 1 - a - b].map((share) => Math.max(0, share));
    return inside.map((share) => share / literate.sum(inside));
  };

  literate.figures["soft-lookup"] = (element, { books, kinds, keys, query: start }) => {
    const { html, svg, set, number } = literate;
    const told = (vector) => kinds.map((kind, i) => `${number(vector[i])} ${kind}`).join(", ");

    // The drawing: threads from the answer to the books, as thick as their weights.
    const threads = keys.map(() => svg("line", { class: "thread" }));
    const answerMark = svg("path", { class: "answer" });
    const handle = svg(
      "g",
      { class: "handle", tabindex: 0, role: "slider", "aria-label": "query", "aria-valuemin": 0, "aria-valuemax": 1 },
      svg("circle", { r: 22, class: "reach" }),
      svg("circle", { r: 9, class: "query" }),
    );
    const dots = keys.map((key, j) => {
      const [x, y] = place(key);
      return svg(
        "g",
        {},
        svg("circle", { cx: x, cy: y, r: 6, class: "key" }),
        svg("text", { x, y: y + 20, "text-anchor": "middle" }, String(j + 1)),
      );
    });
    const anchors = ["start", "middle", "end"];
    const names = kinds.map((kind, i) =>
      svg(
        "text",
        {
          x: CORNERS[i][0] + (i - 1) * 28,
          y: CORNERS[i][1] + (i === 1 ? -10 : 22),
          "text-anchor": anchors[i],
          class: "muted",
        },
        kind,
      ),
    );
    const drawing = svg(
      "svg",
      { viewBox: "0 0 360 290", role: "group", "aria-label": "the query among the books" },
      svg("path", { d: literate.path(CORNERS) + "Z", class: "triangle" }),
      ...names,
      ...threads,
      ...dots,
      answerMark,
      handle,
    );

    // The table: a row for each book.
    const rows = books.map((book, j) => {
      const row = {
        score: html("td", { class: "number" }),
        weight: html("td", { class: "number" }),
        bar: html("span", {}),
      };
      row.element = html(
        "tr",
        {},
        html("th", { scope: "row" }, `${j + 1} ${book}`),
        row.score,
        html("td", { class: "bar" }, row.bar),
        row.weight,
      );
      return row;
    });
    const heads = [["book"], ["score"], ["weight", 2]].map(([text, span = 1]) =>
      html("th", { scope: "col", colspan: span }, text),
    );
    const table = html(
      "table",
      {},
      html("thead", {}, html("tr", {}, ...heads)),
      html("tbody", {}, ...rows.map((row) => row.element)),
    );

    // The controls. A factor of 1 to 100 in forty steps, rounded to two digits.
    const entry = (i) =>
      literate.slider({
        label: kinds[i],
        min: 0,
        max: 1,
        step: 0.01,
        value: start[i],
        say: number,
        change: () => draw(),
      });
    const entries = kinds.map((_, i) => entry(i));
    const factorOf = (step) => Number((10 ** (step / 20)).toPrecision(2));
    const factor = literate.slider({
      label: "scores times",
      min: 0,
      max: 40,
      value: 0,
      say: (step) => String(factorOf(step)),
      change: () => draw(),
    });
    const moveTo = (query) => {
      entries.forEach((slider, i) => slider.set(query[i].toFixed(2)));
      draw();
    };
    const back = literate.button("As in the text", () => {
      factor.set(0);
      moveTo(start);
    });
    const report = literate.report();

    literate.drag(handle, {
      to: (x, y) => moveTo(shares(x, y)),
      by(dx, dy) {
        const [x, y] = place(entries.map((slider) => slider.value));
        moveTo(shares(x + 6 * dx, y + 6 * dy));
      },
    });

    const draw = () => {
      const query = entries.map((slider) => slider.value);
      const { scores, weights, answer } = literate.softLookUp(query, keys, keys, factorOf(factor.value));
      const [qx, qy] = place(query);
      const [x, y] = place(answer);
      set(handle, { transform: `translate(${qx} ${qy})`, "aria-valuenow": query[0], "aria-valuetext": told(query) });
      set(answerMark, { d: `M${x} ${y - 8}l8 8l-8 8l-8 -8Z` });
      const best = Math.max(...weights);
      keys.forEach((key, j) => {
        const [x2, y2] = place(key);
        set(threads[j], { x1: x, y1: y, x2, y2, "stroke-width": 12 * weights[j] });
        rows[j].score.textContent = number(scores[j]);
        rows[j].weight.textContent = number(weights[j]);
        rows[j].bar.style.width = `${100 * weights[j]}%`;
        rows[j].element.className = weights[j] === best ? "first" : "";
      });
      const first =
        weights.filter((w) => w === best).length > 1
          ? "Several come first"
          : `First comes ${books[weights.indexOf(best)]}`;
      report.say(`${first}, with a weight of ${number(best)}. The answer: ${told(answer)}.`);
    };
    draw();

    const legend = html(
      "p",
      { class: "legend" },
      html("span", { class: "query" }, "● the query: drag it"),
      html("span", { class: "key" }, "● books"),
      html("span", { class: "value" }, "◆ the answer, their blend"),
    );
    element.append(
      html("div", { class: "two" }, html("div", {}, drawing, legend), html("div", {}, table)),
      html(
        "div",
        { class: "controls" },
        ...entries.map((slider) => slider.element),
        factor.element,
        html("div", {}, back),
      ),
      report.element,
    );
  };
}
