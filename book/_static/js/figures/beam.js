// Figure of chapter 12: a beam search, step by step. Each step has `candidates`, its likeliest
// continuations, best first: { path, total, fate }, with the tokens and the sum of their
// log-probabilities. It also has the `best` that has ended so far, { path, score } or null, and the
// `bound`: no score above it can still come from what is alive.
"use strict";

{
  const FATES = { kept: "goes\u00a0on", cut: "is\u00a0cut\u00a0off", left: "is not needed" };
  const [WIDTH, HEIGHT] = [104, 30]; // of a column and of a row of the tree

  // A probability from its logarithm: two digits, or its power of ten.
  const probability = (total) => {
    const p = Math.exp(total);
    if (p >= 0.005) return literate.number(p);
    const [digit, power] = p.toExponential(0).split("e");
    return `${digit}·10${[...power].map((c) => ({ "-": "⁻" })[c] ?? "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
  };

  // lp(n) = ((5 + n) / 6)^α, by which the sum of n tokens is divided.
  literate.lengthPenalty = (n, alpha) => ((5 + n) / 6) ** alpha;

  const key = (path) => path.join("\n");

  // Put each beginning into a column, its length, and a row: a leaf has one of its own, and a
  // parent stands where its first child does.
  literate.beamTree = (steps) => {
    const nodes = new Map([["", { path: [], total: 0, fate: "kept", children: [] }]]);
    for (const { candidates } of steps) {
      for (const candidate of candidates.filter(({ fate }) => fate === "kept" || fate === "ended")) {
        const node = { ...candidate, children: [] };
        nodes.set(key(node.path), node);
        node.parent = nodes.get(key(node.path.slice(0, -1)));
        node.parent.children.push(node); // best first, as the candidates are
      }
    }
    let rows = 0;
    const place = (node) => {
      node.children.forEach(place);
      node.row = node.children.length ? node.children[0].row : rows++;
    };
    place(nodes.get(""));
    return { nodes: [...nodes.values()], rows };
  };

  // Whether anything that continues a beginning is alive after `step` steps, or has ended by then.
  const lives = (node, step) =>
    node.path.length <= step &&
    (node.fate === "ended" || node.path.length === step || node.children.some((child) => lives(child, step)));

  literate.figures.beam = (element, { source, alpha, steps, answer }) => {
    const { nodes, rows } = literate.beamTree(steps);
    const columns = steps.length + 1;
    const move = (by) => {
      const focused = document.activeElement;
      step.set(step.value + by);
      draw();
      if (focused.disabled) (focused === forward ? back : forward).focus(); // it has come to an end
    };
    const step = literate.slider({
      label: "Step", min: 0, max: steps.length, value: 1, change: () => draw(),
      say: (n) => `${n} of ${steps.length}`,
    });
    const back = literate.button("Back", () => move(-1));
    const forward = literate.button("Forward", () => move(1));
    const box = [-WIDTH / 2, -HEIGHT / 2, columns * WIDTH, rows * HEIGHT];
    const tree = literate.svg("svg", { viewBox: box.join(" "), role: "img" });
    tree.style.width = `${columns * WIDTH}px`;
    const scrolls = { class: "scroll", tabindex: "0", role: "group", "aria-label": "The tree so far" };
    const frame = literate.html("div", scrolls, tree);
    const body = literate.html("tbody", {});
    const names = [["Beginning", ""], ["Probability", "number"], ["Its fate", ""]];
    const column = ([name, kind]) => literate.html("th", { scope: "col", class: kind }, name);
    const head = literate.html("tr", {}, ...names.map(column));
    const table = literate.html("table", {}, literate.html("thead", {}, head), body);
    const report = literate.report();

    const score = (path, total) => literate.number(total / literate.lengthPenalty(path.length, alpha));

    const at = ({ path, row }) => [path.length * WIDTH, row * HEIGHT];

    const look = (node, now) => {
      if (node.fate === "ended") return now === steps.length && key(node.path) === key(answer) ? "answer" : "ended";
      return lives(node, now) ? "alive" : "fallen";
    };

    const draw = () => {
      const now = step.value;
      back.disabled = now === 0;
      forward.disabled = now === steps.length;
      const seen = nodes.filter(({ path }) => path.length <= now);
      const branches = seen.filter(({ parent }) => parent).map((node) => {
        const [[x, y], [x0, y0]] = [at(node), at(node.parent)];
        const d = `M${x0} ${y0}H${x - WIDTH / 2}V${y}H${x}`;
        return literate.svg("path", { d, class: `branch ${look(node, now)}` });
      });
      const boxes = seen.map((node) => {
        const [x, y] = at(node);
        const label = node.path.length ? `${node.path.at(-1)} ${probability(node.total)}` : "start";
        return literate.svg("g", { class: look(node, now), transform: `translate(${x} ${y})` },
          literate.svg("rect", { x: -47, y: -12, width: 94, height: 24, rx: 4 }),
          literate.svg("text", { "text-anchor": "middle", y: 4 }, label));
      });
      tree.replaceChildren(...branches, ...boxes);
      const { candidates, best, bound } = steps[now - 1] ?? { candidates: [], best: null, bound: 0 };
      body.replaceChildren(...candidates.map(({ path, total, fate }) =>
        literate.html("tr", { class: fate },
          literate.html("td", {}, path.join(" ")),
          literate.html("td", { class: "number" }, probability(total)),
          literate.html("td", {}, FATES[fate] ?? `has ended, score ${score(path, total)}`))));
      table.hidden = !candidates.length;
      report.say(tell(now, best, bound));
      tree.setAttribute("aria-label", `A tree of ${seen.length} boxes; the table below has the newest.`);
      frame.scrollLeft = (now + 1) * WIDTH - frame.clientWidth;
    };

    const tell = (now, best, bound) => {
      if (!now) return `The source is ${source}. Nothing is written yet.`;
      const alive = `What is alive can reach a score of ${literate.number(bound)} at most`;
      if (!best) return `${alive}, and nothing has ended yet: the search goes on.`;
      const ended = `The best that has ended, “${best.path.join(" ")}”, scores ${literate.number(best.score)}`;
      return now < steps.length ? `${ended}. ${alive}: the search goes on.` : `${ended}. ${alive}: the search stops.`;
    };

    element.append(
      literate.html("div", { class: "controls" }, step.element, literate.html("div", { class: "buttons" }, back, forward)),
      frame, table, report.element,
    );
    draw();
  };
}
