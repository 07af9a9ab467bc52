// Positions, as in 03_embedding: the vectors of 128 places as a heat map, the two waves of one
// hand, its turn from position p to p + k, and the dot product of p with every place.
"use strict";
{
  const { dot, path, number } = literate;
  const LENGTH = 128;

  // By how much hand i turns at each step, and the vector of a position.
  literate.frequency = (i, d) => 1 / 10000 ** ((2 * i) / d);
  literate.position = (p, d) =>
    Array.from({ length: d }, (_, j) => {
      const angle = p * literate.frequency(Math.floor(j / 2), d);
      return j % 2 ? Math.cos(angle) : Math.sin(angle);
    });
  // A hand [sine, cosine], turned: the 2 by 2 matrix of the chapter.
  literate.rotate = ([sin, cos], angle) => [
    Math.cos(angle) * sin + Math.sin(angle) * cos,
    -Math.sin(angle) * sin + Math.cos(angle) * cos,
  ];

  // Paint the table: blue where positive, orange where negative, the page's own colour at 0.
  const paint = (canvas, table) => {
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    const style = getComputedStyle(document.documentElement);
    const [paper, positive, negative] = ["--paper", "--query", "--stream"].map((name) => {
      pen.fillStyle = style.getPropertyValue(name);
      pen.fillRect(0, 0, 1, 1);
      return pen.getImageData(0, 0, 1, 1).data;
    });
    const image = pen.createImageData(canvas.width, canvas.height);
    table.flat().forEach((x, n) => {
      const colour = x > 0 ? positive : negative;
      for (let c = 0; c < 3; c++) image.data[4 * n + c] = paper[c] + Math.abs(x) * (colour[c] - paper[c]);
      image.data[4 * n + 3] = 255;
    });
    pen.putImageData(image, 0, 0);
  };

  literate.figures.positions = (element, { d: width, p: position, k: step, i: hand }) => {
    const { html, svg, set } = literate;
    const change = () => draw();
    const d = literate.choice({
      label: "width d",
      options: [8, 16, 32, 64, 128, 256, 512].map((d) => [d, String(d)]),
      value: width,
      change: () => renew(),
    });
    const p = literate.slider({ label: "position p", min: 0, max: LENGTH / 2 - 1, value: position, change });
    const k = literate.slider({ label: "step k", min: 0, max: LENGTH / 2, value: step, change });
    const i = literate.slider({ label: "hand i", min: 0, max: width / 2 - 1, value: hand, change });
    const report = literate.report();
    const panel = (title, ...parts) => html("div", { class: "panel" }, html("p", { class: "head" }, title), ...parts);

    // The heat map, with the two rows and the two columns that the others speak of. A pointer on
    // it chooses the position and the hand.
    const canvas = html("canvas", { height: LENGTH, "aria-hidden": "true" });
    const rows = ["here", "there"].map((name) => svg("line", { x1: 0, x2: 100, class: name }));
    const columns = svg("rect", { y: 0, height: LENGTH, class: "columns" });
    const frame = svg(
      "svg",
      { viewBox: `0 0 100 ${LENGTH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      columns,
      ...rows,
    );
    const point = ({ clientX, clientY }) => {
      const box = frame.getBoundingClientRect();
      i.set(Math.floor(((clientX - box.x) / box.width) * (d.value / 2)));
      p.set(Math.floor(((clientY - box.y) / box.height) * LENGTH));
      draw();
    };
    frame.onpointerdown = point;
    frame.onpointermove = (event) => event.buttons && event.pointerType === "mouse" && point(event); // a finger scrolls

    // Waves and dot products share their axis: the positions 0 to 127.
    const x = (place) => 34 + 2.5 * place;
    const graph = (low, high, levels, ...parts) => {
      const y = (value) => 12 + (116 * (high - value)) / (high - low);
      const marks = ["here", "there"].map((name) => svg("circle", { r: 5, class: name }));
      const rules = levels.flatMap((level) => [
        svg("line", { x1: x(0), x2: x(127), y1: y(level), y2: y(level), class: "rule" }),
        svg("text", { x: 28, y: y(level) + 4, "text-anchor": "end", class: "muted" }, number(level, level % 1 ? 1 : 0)),
      ]);
      const ticks = [0, 32, 64, 96].map((place) =>
        svg("text", { x: x(place), y: 146, "text-anchor": "middle", class: "muted" }, String(place)),
      );
      return {
        y,
        marks,
        element: svg("svg", { viewBox: "0 0 360 150", "aria-hidden": "true" }, ...rules, ...ticks, ...parts, ...marks),
      };
    };
    const waves = ["sine", "cosine"].map((name) => svg("path", { class: `curve ${name}` }));
    const swing = graph(-1, 1, [-1, 0, 1], ...waves);
    const cosineMarks = ["here", "there"].map((name) => svg("circle", { r: 5, class: name }));
    swing.element.append(...cosineMarks);
    const fall = svg("path", { class: "curve sine" });
    const likeness = graph(-0.5, 1, [-0.5, 0, 0.5, 1], fall);

    // The dial: a hand points up at angle 0, and turns as a clock's.
    const hands = ["here", "there"].map((name) => svg("line", { x1: 0, y1: 0, class: `hand ${name}` }));
    const arc = svg("path", { class: "arc" });
    const dial = svg(
      "svg",
      { viewBox: "-56 -56 112 112", class: "dial", "aria-hidden": "true" },
      svg("circle", { r: 50, class: "rim" }),
      arc,
      ...hands,
    );
    const lines = Array.from({ length: 3 }, () => [
      html("th", { scope: "row" }),
      html("td", { class: "number" }),
      html("td", { class: "number" }),
    ]);
    const table = html(
      "table",
      {},
      html("tr", {}, html("td", {}), html("th", { scope: "col" }, "sine"), html("th", { scope: "col" }, "cosine")),
      ...lines.map((cells) => html("tr", {}, ...cells)),
    );
    const turn = html("p", {});

    let vectors;
    const renew = () => {
      const wide = Number(d.value);
      vectors = Array.from({ length: LENGTH }, (_, place) => literate.position(place, wide));
      i.limit(wide / 2 - 1);
      canvas.width = wide;
      paint(canvas, vectors);
      draw();
    };

    const draw = () => {
      const wide = Number(d.value),
        from = p.value,
        to = p.value + k.value;
      const pair = vectors.map((vector) => vector.slice(2 * i.value, 2 * i.value + 2));
      const angle = k.value * literate.frequency(i.value, wide);
      [from, to].forEach((place, n) => {
        set(rows[n], { y1: place + 0.5, y2: place + 0.5 });
        set(swing.marks[n], { cx: x(place), cy: swing.y(pair[place][0]) });
        set(cosineMarks[n], { cx: x(place), cy: swing.y(pair[place][1]) });
        set(hands[n], { x2: 50 * pair[place][0], y2: -50 * pair[place][1] });
      });
      set(columns, { x: (200 * i.value) / wide, width: 200 / wide });
      waves.forEach((wave, n) => set(wave, { d: path(pair.map((tip, place) => [x(place), swing.y(tip[n])])) }));
      const start = from * literate.frequency(i.value, wide);
      const turned = Array.from({ length: 49 }, (_, n) => start + (Math.min(angle, 2 * Math.PI) * n) / 48);
      set(arc, { d: path(turned.map((a) => [24 * Math.sin(a), -24 * Math.cos(a)])) });
      [
        [`p = ${from}`, pair[from]],
        [`p + k = ${to}`, pair[to]],
        ["p, turned", literate.rotate(pair[from], angle)],
      ].forEach(([name, tip], n) => {
        lines[n][0].textContent = name;
        tip.forEach((value, m) => (lines[n][m + 1].textContent = number(value, 3)));
      });
      turn.textContent = `In ${k.value} steps, hand ${i.value} turns by ${number(angle, 2)} radians, from any position.`;

      const alike = vectors.map((vector) => (2 * dot(vectors[from], vector)) / wide);
      set(fall, { d: path(alike.map((value, place) => [x(place), likeness.y(value)])) });
      [from, to].forEach((place, n) => set(likeness.marks[n], { cx: x(place), cy: likeness.y(alike[place]) }));
      report.say(
        `From position ${from} to ${to}, hand ${i.value} turns by ${number((angle * 180) / Math.PI, 0)} degrees. ` +
          `The dot product of the two vectors is ${number((alike[to] * wide) / 2)}, of ${wide / 2} at most, a share of ${number(alike[to])}.`,
      );
    };

    renew();
    literate.inTheme(() => paint(canvas, vectors));
    element.append(
      html("div", { class: "controls" }, p.element, k.element, i.element, d.element),
      html(
        "div",
        { class: "four" },
        panel("all vectors, a row for each position", html("div", { class: "map" }, canvas, frame)),
        panel(
          "hand i over the positions",
          swing.element,
          html(
            "p",
            { class: "legend" },
            html("span", { class: "query" }, "— sine"),
            html("span", { class: "stream" }, "- - cosine"),
          ),
        ),
        panel("hand i at p and at p + k", html("div", { class: "turn" }, dial, table), turn),
        panel(
          "dot product of p with each place, divided by d / 2",
          likeness.element,
          html("p", { class: "legend" }, html("span", {}, "● p"), html("span", { class: "key" }, "● p + k")),
        ),
      ),
      report.element,
    );
  };
}
