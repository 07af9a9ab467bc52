// The walk through the model, part 3 of 3: the figure of chapter 8. The trained date model reads what
// stands in the field, and each step of the walk shows what it computes on the way: see js/walk/look.js
// for the numbers and pictures, js/walk/steps.js for the steps. They come with the model, when a
// reader asks for it; until then there is an invitation above the still picture.
"use strict";

{
  const { html, number } = literate;
  const CANDIDATES = 8; // next tokens that are listed
  const ALL = 21; // place of "all" on the slider of top-k
  const BREATH = 30; // milliseconds of computing after which the page may show something

  // A part that had the focus and is gone, or is put into the page anew, leaves it to nobody.
  const nothingFocused = () => document.activeElement === document.body;

  const titleOf = ({ attention, name }) => (attention ? `${attention}: ${name.toLowerCase()}` : name);

  literate.figures.walk = (element, values) => {
    const report = literate.report();
    const load = literate.button(`Load the trained model, ${literate.MODEL_SIZE}`, async () => {
      load.disabled = true;
      report.say("The model is being fetched.");
      try {
        const [translator] = await Promise.all([
          literate.fetchTranslator(),
          literate.fetchScripts("walk/look.js", "walk/steps.js"),
        ]);
        bringToLife(element, translator, values);
      } catch (error) {
        load.disabled = false;
        if (nothingFocused()) load.focus({ preventScroll: true });
        report.say(`The model did not come: ${error.message}. The picture below shows the same way, for one date.`);
      }
    });
    element.classList.add("waiting");
    element.append(load, report.element);
    report.say("Then take a date of your own through the model, step by step, with its true numbers.");
  };

  const bringToLife = (element, translator, { text, longest, i, t }) => {
    const { travel, look, readout, say, quoted, drawing, table, share, forbidden, steps, groups, onwards } = literate.walk;
    const { model, tokenizer } = translator;
    const { n_layers: N, n_heads: H } = model.config;
    const piece = (id) => literate.visible(tokenizer.pieces([id])[0]);
    const choice = { step: 0, i, t, n: 0, h: 0 };
    let way; // what the model has computed
    let latest = 0; // number of the reader's last wish; what an earlier one has begun ends unseen
    let told = ""; // how the last token came about, if the reader took one

    // ---------------------------------------------------------------- What can be chosen

    const input = literate.textInput({ label: "A date", value: text, change: () => ((told = ""), follow()) });
    const chooser = (name, label, more) => {
      const row = literate.tokens({ label, change: () => go({ [name]: row.value }), ...more });
      return row;
    };
    const choosers = {
      i: chooser("i", "English"),
      t: chooser("t", "Chinese", { lang: "zh-Hans" }),
      n: chooser("n", "Layer"),
      h: chooser("h", "Head"),
    };
    const upTo = (count) => Array.from({ length: count }, (_, k) => String(k + 1));
    choosers.n.fill(upTo(N));
    choosers.h.fill(upTo(H));

    // The list of steps, each with what it ends with.
    const list = html("fieldset", { class: "steps" }, html("legend", { class: "visually-hidden" }, "Steps of the way"));
    const headings = {};
    const items = steps.map((each, step) => {
      const { group, name, block } = each;
      if (!headings[group]) list.append((headings[group] = html("p", { class: "heading" })));
      const radio = html("input", {
        type: "radio", name: "walk-step", autocomplete: "off", "aria-label": `${step + 1}: ${titleOf(each)}`, onchange: () => go({ step }),
      });
      const result = html("span", { class: "result", "aria-hidden": "true" });
      const badge = html("span", { class: `badge-of-step ${block}`, "aria-hidden": "true" }, String(step + 1));
      list.append(html("label", {}, radio, badge, html("span", {}, name), result));
      return { radio, result };
    });

    const back = literate.button("← Back", () => go(onwards(choice, -1, N)));
    const next = literate.button("Next →", () => go(onwards(choice, 1, N)));

    // ---------------------------------------------------------------- The next token

    const again = () => {
      told = "";
      drawCandidates();
      tell(see());
    };
    const temperature = literate.slider({
      label: "temperature", min: 0.1, max: 3, step: 0.1, value: 1, say: (x) => number(Number(x), 1), change: again,
    });
    const topK = literate.slider({
      label: "top-k", min: 1, max: ALL, value: ALL, say: (k) => (Number(k) === ALL ? "all" : String(k)), change: again,
    });
    const probabilities = () => {
      const k = topK.value === ALL ? undefined : topK.value;
      return literate.nextProbabilities(way.steps[choice.t].logits, temperature.value, k);
    };
    const draw = () => {
      const u = Math.random();
      take(literate.draw(probabilities(), u), `Of the line from 0 to 1, ${number(u, 3)} was drawn, which falls on`);
    };
    const candidates = html("div", {});
    const nextToken = [
      html("div", { class: "controls" }, temperature.element, topK.element),
      html("div", { class: "buttons" },
        literate.button("Take the likeliest", () => take(literate.largest(probabilities(), 1)[0], "Taken:")),
        literate.button("Draw one", draw)),
      candidates,
    ];
    const drawCandidates = () => {
      const { logits, next } = way.steps[choice.t];
      const p = probabilities();
      const row = (id) => {
        const button = literate.button(piece(id), () => take(id, "Taken:"));
        literate.set(button, { "aria-pressed": id === next, lang: "zh-Hans" });
        const bar = p[id] ? share(p[id], literate.percent(p[id])) : forbidden();
        return { name: button, cells: [number(logits[id]), number(logits[id] / temperature.value), bar] };
      };
      const columns = [
        { title: "logit", look: "short" }, { title: "÷ temp.", look: "short" }, { title: "probability", kind: "query" },
      ];
      const likely = literate.largest(literate.nextProbabilities(logits), CANDIDATES);
      candidates.replaceChildren(table(columns, likely.map(row)));
    };
    const outcome = () => {
      const { next } = way.steps[choice.t];
      const share = `${quoted(piece(next))} has a probability of ${literate.percent(probabilities()[next])}`;
      const whole = tokenizer.decode(way.steps.map((step) => step.next));
      return `${told}After ${quoted(way.target[choice.t])}, ${share}. The whole: ${whole}`;
    };

    // ---------------------------------------------------------------- The stage: one step

    const place = html("p", { class: "head" });
    const words = html("p", {});
    const shape = html("p", { class: "shape" });
    const picture = html("div", { class: "picture" });
    const result = html("p", { class: "report" });
    const spoken = literate.report({ visible: false });

    const see = () => ({
      ...look(way, choice), ...choice, N, H, piece, outcome,
      text: way.text, src: way.src, tgt: way.tgt, next: piece(way.steps[choice.t].next),
      vector: (id) => model.embedding.vector(id),
      chooseHead: (h) => {
        go({ h });
        picture.querySelector("[aria-pressed=true]").focus({ preventScroll: true });
      },
      choices: () => (drawCandidates(), nextToken),
    });

    const tell = (seen) => {
      const step = steps[choice.step];
      result.textContent = step.says(seen);
      spoken.say(`${titleOf(step)}. ${result.textContent}`);
    };

    const drawAll = () => {
      const seen = see();
      const step = steps[choice.step];
      for (const [name, row] of Object.entries(choosers)) row.set(choice[name]);
      for (const [group, heading] of Object.entries(headings)) heading.textContent = groups[group](seen);
      steps.forEach(({ result, kind }, s) => {
        const found = result(seen);
        items[s].result.replaceChildren(typeof found === "string" ? found : drawing(found, kind));
      });
      items[choice.step].radio.checked = true;
      back.disabled = !onwards(choice, -1, N);
      next.disabled = !onwards(choice, 1, N);
      const [where] = groups[step.group](seen).split(":");
      place.replaceChildren(html("small", {}, `${choice.step + 1} of ${steps.length} · ${where}`), titleOf(step));
      const [href, chapter] = step.chapter;
      words.replaceChildren(...step.words(seen), " Built in ", html("a", { href }, chapter), ".");
      shape.replaceChildren(...step.shape(seen));
      picture.replaceChildren(...step.picture(seen));
      say(picture.querySelector("svg") ? undefined : "");
      tell(seen);
    };

    // Go to another step, token, layer or head.
    const go = (change) => {
      Object.assign(choice, change);
      if (!way) return; // it is drawn when it is computed
      told = "";
      const focused = document.activeElement;
      drawAll();
      const item = items[choice.step].radio.parentElement; // into sight, where the list scrolls
      list.scrollTo({ left: item.offsetLeft - (list.clientWidth - item.clientWidth) / 2 });
      if (focused.disabled) (focused === next ? back : next).focus(); // it has come to an end
      else if (nothingFocused() && focused !== document.body) (next.disabled ? back : next).focus({ preventScroll: true });
    };

    // ---------------------------------------------------------------- Computing

    const refuse = (text) => {
      element.classList.add("refused");
      result.textContent = text;
      spoken.say(text);
    };

    // Let the model write for what stands in the field; the first tokens may be given.
    const follow = async (given = []) => {
      const wish = ++latest;
      try {
        const { refusal, src } = await literate.readText(input.value, longest);
        if (wish !== latest) return;
        if (refusal) return refuse(refusal);
        let found;
        let begun = performance.now();
        for (found of travel(translator, src, given)) {
          if (performance.now() - begun < BREATH) continue;
          await literate.pause();
          if (wish !== latest) return;
          begun = performance.now();
        }
        way = Object.assign(found, { text: input.value });
        if (given.length) choice.t = given.length;
        choice.i = Math.min(choice.i, way.src.length - 1);
        choice.t = Math.min(choice.t, way.tgt.length - 1);
        choosers.i.fill(way.source);
        choosers.t.fill(way.target);
        element.classList.remove("refused");
        drawAll();
      } catch (error) {
        if (wish === latest) refuse(`The model did not answer: ${error.message}.`);
      }
    };

    // Write a token of the reader's choice, and look at what comes after it.
    const take = async (id, how) => {
      const given = [...way.steps.slice(0, choice.t).map((step) => step.next), id];
      const pressed = document.activeElement;
      input.set(way.text);
      told = `${how} ${quoted(piece(id))}. `;
      await follow(given);
      if (!nothingFocused()) return;
      (pressed.isConnected ? pressed : candidates.querySelector("button")).focus({ preventScroll: true });
    };

    // The arrow keys walk, where they do not belong to what has the focus.
    element.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.defaultPrevented || event.target.closest("input")) return;
      event.preventDefault();
      const stop = onwards(choice, by, N);
      if (stop) go(stop);
    };

    element.classList.remove("waiting");
    element.replaceChildren(html("div", { class: "parts" },
      html("div", { class: "choices" }, input.element, ...Object.values(choosers).map((row) => row.element)),
      list,
      html("section", { class: "stage" },
        html("div", { class: "turn" }, back, place, next), words, shape, picture, readout, result, spoken.element)));
    follow().then(() => nothingFocused() && next.focus({ preventScroll: true }));
  };
}
