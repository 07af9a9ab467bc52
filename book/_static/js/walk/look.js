// The walk through the model, part 1 of 3: what model.js has computed, and how a vector is drawn.
//
// A `way` is all that the model computes for one sentence. `look` picks from it what belongs to a
// choice { i, t, n, h }: a token of the source, a token of the target that has just been read, a
// layer and a head, all counted from 0. What it finds has the names of the picture: x is what comes
// into a sublayer, y what the sublayer adds to it.
"use strict";

literate.walk = {};

{
  const { html, svg, number } = literate;

  // ---------------------------------------------------------------- The numbers

  // Let the model write, and keep what it computes. The first tokens that it writes may be `given`;
  // then it is always the likeliest. Yields the way after each token.
  const travel = function* ({ model, tokenizer }, src, given = []) {
    const choose = (probabilities, t) => given[t] ?? literate.largest(probabilities, 1)[0];
    const way = { model, src, tgt: [], steps: [], source: tokenizer.pieces(src).map(literate.visible), target: [] };
    let read = literate.BOS;
    for (const { token, logits } of literate.greedySearch(model, src, choose)) {
      way.encoder ??= literate.trace(model.encoder);
      way.tgt.push(read);
      way.target.push(...tokenizer.pieces([read]).map(literate.visible));
      way.steps.push({ next: token, logits, layers: literate.trace(model.decoder) });
      read = token;
      yield way;
    }
  };

  // How a token comes into a stack.
  const entry = (model, id, place) => {
    const token = model.embedding.token(id);
    const position = literate.sinusoidalPosition(place, token.length);
    return { id, place, token, position, x: token.map((number, j) => number + position[j]) };
  };

  // What an attention has computed for the query in row r, by head h.
  const attended = (last, r, h) => ({
    query: last.query[h][r],
    key: last.key[h],
    value: last.value[h],
    scores: last.heads[h].scores[r],
    weights: last.heads[h].weights[r],
    output: last.heads[h].output[r],
    joined: last.joined[r],
  });

  // Row r of each of several things.
  const rowOf = (things, r) =>
    Object.fromEntries(Object.entries(things).map(([name, rows]) => [name, rows[r]]));

  const look = ({ model, src, tgt, source, target, encoder, steps }, { i, t, n, h }) => {
    const reader = encoder[n]; // all tokens at once: row i is ours
    const writers = steps.map(({ layers }) => layers[n]); // one token each: row 0 of writer t
    const writer = writers[t];
    const weightsOf = (part) =>
      writer[part].heads.map((_, head) => writers.map((each) => each[part].heads[head].weights[0]));
    return {
      source: entry(model, src[i], i),
      entering: encoder[0].residual1.x, // of all tokens of the source
      encoder: {
        ...attended(reader.selfAttention, i, h),
        ...{ asks: source[i], row: i, asking: source, keys: source, later: [] },
        queries: reader.selfAttention.query[h],
        maps: reader.selfAttention.heads.map(({ weights }) => weights),
        residual: rowOf(reader.residual1, i),
      },
      encoderNetwork: { ...rowOf(reader.feedForward, i), residual: rowOf(reader.residual2, i) },
      memory: encoder.at(-1).residual2.output,
      target: entry(model, tgt[t], t),
      decoder: {
        ...attended(writer.selfAttention, 0, h),
        ...{ asks: target[t], row: t, asking: target },
        ...{ keys: target.slice(0, t + 1), later: target.slice(t + 1) },
        queries: [...Array(t), writer.selfAttention.query[h][0]], // the others have been asked before
        maps: weightsOf("selfAttention"),
        residual: rowOf(writer.residual1, 0),
      },
      cross: {
        ...attended(writer.crossAttention, 0, h),
        ...{ asks: target[t], row: t, asking: target, keys: source, later: [] },
        queries: [], // it comes from elsewhere
        maps: weightsOf("crossAttention"),
        residual: rowOf(writer.residual2, 0),
      },
      decoderNetwork: { ...rowOf(writer.feedForward, 0), residual: rowOf(writer.residual3, 0) },
      last: steps[t].layers.at(-1).residual3.output[0],
      logits: steps[t].logits,
    };
  };

  // ---------------------------------------------------------------- The pictures

  const HINT = "Point at a bar to read its number; by keyboard, Tab to a strip and use the arrow keys.";
  const readout = html("p", { class: "readout", "aria-hidden": "true" }); // where it is read
  const say = (text = HINT) => (readout.textContent = text);
  const quoted = (token) => `“${token}”`;
  const within = (x, size) => Math.min(Math.max(Math.floor(x), 0), size - 1);

  // The largest size of a number in some vectors.
  const extent = (...vectors) =>
    vectors.reduce((most, vector) => vector.reduce((a, x) => Math.max(a, Math.abs(x)), most), 1e-9);

  // A vector: a bar for each number, up from the middle or down, the longer the larger.
  const drawing = (values, kind, most = extent(values)) => {
    const bar = (x, j) => `M${j + 0.07} 0v${(-x / most).toFixed(3)}h.86V0`;
    const below = values.some((x) => x < 0) ? 1 : 0;
    return svg("svg",
      { class: `strip ${kind}`, viewBox: `0 -1 ${values.length} ${1 + below}`, preserveAspectRatio: "none" },
      svg("path", { class: "middle", d: `M0 0H${values.length}` }),
      svg("path", { class: "bars", d: Array.from(values, bar).join("") }));
  };

  // The same, with numbers that one can read: by pointer, and by the arrow keys, which go from number
  // to number and to the strips above and below.
  const strip = (name, values, kind, most) => {
    const node = drawing(values, kind, most);
    const cursor = svg("rect", { class: "cursor", y: -1, width: 1, height: 2 });
    const told = (j) => `entry ${j + 1} of ${values.length}: ${number(values[j], 4)}`;
    const show = (j) => {
      literate.set(cursor, { x: j });
      node.classList.add("pointed");
      say(`${name}, ${told(j)}`);
    };
    const leave = () => {
      node.classList.remove("pointed");
      say();
    };
    let at; // where the keys are
    const stand = (j) => {
      at = within(j, values.length);
      literate.set(node, { "aria-valuenow": at + 1, "aria-valuetext": told(at) });
    };
    const goTo = (j) => {
      stand(j);
      show(at);
    };
    const under = ({ clientX }) => {
      const { x, width } = node.getBoundingClientRect();
      return within(((clientX - x) / width) * values.length, values.length);
    };
    const toRow = (by) => {
      const strips = stripsIn(node.closest("table"), node.closest("td").cellIndex);
      const next = strips[strips.indexOf(node) + by];
      if (!next) return;
      literate.set(node, { tabindex: -1 });
      literate.set(next, { tabindex: 0 });
      next.focus();
    };
    const keys = {
      ArrowLeft: () => goTo(at - 1),
      ArrowRight: () => goTo(at + 1),
      Home: () => goTo(0),
      End: () => goTo(values.length - 1),
      ArrowUp: () => toRow(-1),
      ArrowDown: () => toRow(1),
    };
    literate.set(node, {
      role: "slider", tabindex: -1, "aria-label": name, "aria-valuemin": 1, "aria-valuemax": values.length,
      onpointermove: (event) => show(under(event)), onpointerdown: (event) => goTo(under(event)), onpointerleave: leave,
      onfocus: () => show(at), onblur: leave,
      onkeydown: (event) => {
        if (!(event.key in keys) || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        keys[event.key]();
      },
    });
    node.append(cursor);
    stand(0);
    return node;
  };

  const stripsIn = (table, column) =>
    [...table.rows].map((row) => row.cells[column]?.querySelector(".strip")).filter(Boolean);

  // Rows of named things. A column is { title, kind, look }, a row { name, cells, look }. Tab leads to
  // one strip of each column.
  const table = (columns, rows) => {
    const node = html("table", {},
      html("thead", {}, html("tr", {}, html("td", {}), ...columns.map(({ title, kind = "", look = "" }) =>
        (title ? html("th", { scope: "col", class: `${kind} ${look}` }, title) : html("td", {}))))),
      html("tbody", {}, ...rows.map(({ name, cells, look = "" }) =>
        html("tr", { class: look }, html("th", { scope: "row" }, ...[name].flat()),
          ...cells.map((cell) => html("td", {}, cell ?? ""))))));
    columns.forEach((_, c) => {
      const strips = stripsIn(node, c + 1);
      const first = strips.find((one) => one.closest(".chosen")) ?? strips[0];
      if (first) literate.set(first, { tabindex: 0 });
    });
    return node;
  };

  // Vectors below each other on one scale, or each on its own. A row is { name, spoken, values, kind,
  // look }; `spoken` is for a name that is not plain text.
  const stack = (rows, title = "", most = undefined) =>
    table([{ title }], rows.map(({ name, spoken = name, values, kind, look, most: own = most }) =>
      ({ name, look, cells: [strip(spoken, values, kind, own)] })));

  // A share of 1 as a bar, and its number.
  const share = (w, told = number(w, 3)) =>
    html("div", { class: "share", style: `--share: ${w}` }, html("i", {}), told);

  const forbidden = (text = "") => html("div", { class: "forbidden" }, text);

  const boxes = (tokens, ids, chosen, more = {}) =>
    html("ol", { class: "boxes", ...more }, ...tokens.map((token, i) =>
      html("li", { class: i === chosen ? "chosen" : "" }, token, html("small", {}, String(ids[i])))));

  // Weights, a row for each query and a column for each key: the darker, the larger.
  const LEVELS = 20;
  const map = (rows, width, chosen) => {
    const levels = Array.from({ length: LEVELS + 1 }, () => "");
    rows.forEach((row, t) =>
      row.forEach((w, s) => (levels[Math.round(LEVELS * w)] += `M${s} ${t}h1v1h-1z`)));
    const allowed = rows.map((row, t) => `M0 ${t}h${row.length}v1H0z`).join(""); // the rest is hatched
    return svg("svg",
      { class: "map query", viewBox: `0 0 ${width} ${rows.length}`, preserveAspectRatio: "none" },
      svg("path", { class: "allowed", d: allowed }),
      ...levels.map((d, level) => svg("path", { class: "bars", d, "fill-opacity": level / LEVELS })),
      svg("rect", { class: "edge", y: chosen, width, height: 1 }));
  };

  // The maps of all heads; `choose` is called with the number of one that is pressed.
  const maps = ({ maps, asking, keys, later, row, asks }, h, choose) => {
    const columns = [...keys, ...later];
    const buttons = maps.map((rows, head) => {
      const drawn = map(rows, columns.length, row);
      drawn.onpointermove = ({ clientX, clientY }) => {
        const { x, y, width, height } = drawn.getBoundingClientRect();
        const t = within(((clientY - y) / height) * rows.length, rows.length);
        const s = within(((clientX - x) / width) * columns.length, columns.length);
        const weight = s < rows[t].length ? `weight ${number(rows[t][s], 3)}` : "hidden by the mask";
        say(`Head ${head + 1}, ${quoted(asking[t])} to ${quoted(columns[s])}: ${weight}`);
      };
      drawn.onpointerleave = () => say();
      const button = literate.button("", () => choose(head));
      button.append(drawn, `head ${head + 1}`);
      literate.set(button, { "aria-pressed": head === h });
      return button;
    });
    const told = `All queries (rows) and all keys (columns), by each head. The row of ${quoted(asks)} is framed.`;
    return html("div", { class: "maps" }, html("p", {}, told), html("div", {}, ...buttons));
  };

  Object.assign(literate.walk, {
    travel, look, readout, say, quoted, extent, drawing, strip, table, stack, share, forbidden, boxes, maps,
  });
}
