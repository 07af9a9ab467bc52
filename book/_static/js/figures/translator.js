// Figure of chapter 13: the date model at work. Recorded examples are there from the start; the
// model itself (js/tokenizer.js, js/model.js and the weights in dates-model.js) is fetched when a
// reader turns to the field.
//
// A translation is { text, source, steps }: the tokens of the source, and for each token written
// { token, top, rank, cross }: the likeliest tokens with their probabilities, [token, p] each; which
// of them was written, 0 for the first, if nothing is said; and the cross-attention of each layer
// and head to the source, (n, h, s), a row of it a text of thousandths, where it is recorded.
"use strict";

{
  const TOP = 5;
  const PACE = 350; // milliseconds for a token, when one watches
  const WATCH = "Watch it write";

  const { percent, pause } = literate;

  // Write a translation, one step after the other, as the figure shows them. `ranks` are the
  // reader's choices: for the first tokens, which of the likeliest is written. Then it is the first.
  const writeSteps = function* ({ model, tokenizer }, src, ranks) {
    const rankOf = (t) => ranks[t] ?? 0;
    const choose = (probabilities, t) => literate.largest(probabilities, TOP)[rankOf(t)];
    let t = 0;
    for (const { probabilities, cross } of literate.greedySearch(model, src, choose)) {
      const ids = literate.largest(probabilities, TOP);
      const top = tokenizer.pieces(ids).map((name, i) => [literate.visible(name), probabilities[ids[i]]]);
      const rank = rankOf(t++);
      yield { token: top[rank][0], top, rank, cross };
    }
  };

  // The probability of the token that a step has written.
  const probabilityOf = ({ top, rank = 0 }) => top[rank][1];

  const readRow = (row) => (typeof row === "string" ? literate.fractions(row) : Array.from(row));

  // The share of each source token: of one head, "layer.head" from 1, or the mean of all.
  const shares = (cross, head) => {
    const rows = cross.flat().map(readRow);
    const mean = (s) => literate.sum(rows.map((row) => row[s])) / rows.length;
    if (head === "mean") return rows[0].map((_, s) => mean(s));
    const [layer, number] = head.split(".").map(Number);
    return readRow(cross[layer - 1][number - 1]);
  };

  literate.figures.translator = (element, { longest, examples }) => {
    const [{ cross }] = examples[0].steps;
    const names = cross.flatMap((heads, n) => heads.map((_, h) => `${n + 1}.${h + 1}`));
    let shown; // the translation in the figure
    let latest = 0; // number of the reader's last wish; what an earlier one has begun ends unseen
    let watching = null; // what writes slowly, if anything does

    const input = literate.textInput({ label: "A date in English", value: "", change: () => translate() });
    const watch = literate.button(WATCH, () => (watching ? stopWatching() : startWatching()));
    const tokens = literate.tokens({
      label: "In Chinese, token by token", lang: "zh-Hans", change: () => (stopWatching(), choose()),
    });
    const head = literate.choice({
      label: "Attention of",
      options: [
        ["mean", `mean of all ${names.length}`],
        ...names.map((name) => [name, `layer ${name.replace(".", ", head ")}`]),
      ],
      value: "mean",
      change: () => choose(),
    });
    const candidates = literate.html("ol", { class: "bars" });
    const looks = literate.html("ol", { class: "looks" });
    const heading = (text) => literate.html("p", { class: "heading" }, text);
    const details = literate.html("div", { class: "details" },
      literate.html("section", {}, heading("What could come? Press one"), candidates),
      literate.html("section", {}, heading("Where it looks for it"), head.element, looks));
    const result = literate.html("div", {}, tokens.element, details);
    const report = literate.report();
    const spoken = literate.report({ visible: false }); // what the details show, to the ear

    // The chosen token: what else could have come, and what the model looked at.
    const drawChoice = () => {
      const { top, rank = 0, cross } = shown.steps[tokens.value];
      const bar = () => literate.html("i", {});
      const name = (text, lang) => literate.html("span", { lang }, text);
      const item = (share, ...parts) => literate.html("li", { style: `--share: ${share}` }, ...parts);
      candidates.replaceChildren(...top.map(([token, p], i) => {
        const button = literate.button("", () => goOnFrom(i));
        literate.set(button, { "aria-pressed": i === rank });
        button.append(name(token, "zh-Hans"), bar(), percent(p));
        return item(p, button);
      }));
      looks.replaceChildren(...shares(cross, head.value).map((share, s) =>
        item(share, bar(), name(shown.source[s], "en"), literate.number(share))));
    };

    // The reader chooses a token, or a head to see it by.
    const choose = () => {
      drawChoice();
      const step = shown.steps[tokens.value];
      const looked = shares(step.cross, head.value);
      const s = looked.indexOf(Math.max(...looked));
      const most = `it looks most at “${shown.source[s]}”, with ${literate.number(looked[s])}`;
      spoken.say(`“${step.token}”, ${percent(probabilityOf(step))}: ${most}.`);
    };

    // The first `n` tokens; a line below each is as long as it is probable.
    const fill = (n) => {
      const steps = shown.steps.slice(0, n);
      tokens.fill(steps.map((step) => step.token));
      const labels = tokens.element.querySelectorAll("label");
      steps.forEach((step, i) => labels[i].style.setProperty("--share", probabilityOf(step)));
    };

    const drawTokens = (n, chosen) => {
      fill(n);
      tokens.set(chosen);
      drawChoice();
    };

    const stopWatching = () => {
      if (!watching) return;
      watching = null;
      watch.textContent = WATCH;
      drawTokens(shown.steps.length, tokens.value);
    };

    const startWatching = async () => {
      const mine = (watching = {});
      watch.textContent = "Stop";
      for (let n = 1; n <= shown.steps.length && watching === mine; n++) {
        drawTokens(n, n - 1);
        await pause(PACE);
      }
      if (watching === mine) stopWatching();
    };

    // A new wish of the reader: what is in the figure gives way.
    const begin = () => {
      stopWatching();
      return ++latest;
    };

    const onlySay = (text) => {
      result.hidden = watch.disabled = true;
      report.say(text);
    };

    const show = (translation, chosen = 0) => {
      shown = translation;
      result.hidden = watch.disabled = false;
      drawTokens(shown.steps.length, chosen);
    };

    const showExample = (example) => {
      begin();
      input.set(example.text);
      show(example);
      report.say(example.note);
    };

    // Write a token of the reader's choice in the place of the chosen one, and let the model go on.
    const goOnFrom = async (rank) => {
      const ranks = shown.steps.slice(0, tokens.value).map((step) => step.rank ?? 0);
      input.set(shown.text);
      await translate([...ranks, rank]);
      if (document.activeElement === document.body) { // the focus was on a button that is gone
        candidates.children[rank].firstChild.focus({ preventScroll: true });
      }
    };

    const translate = async (ranks = []) => {
      const wish = begin();
      const text = input.value;
      if (!literate.datesModel) onlySay(`The model is being fetched, ${literate.MODEL_SIZE}.`);
      try {
        const { refusal, translator, src } = await literate.readText(text, longest);
        if (wish !== latest) return;
        if (refusal) return onlySay(refusal);
        const translation = { text, source: translator.tokenizer.pieces(src).map(literate.visible), steps: [] };
        let busy = 0;
        let begun = performance.now();
        const chosen = Math.max(0, ranks.length - 1);
        for (const step of writeSteps(translator, src, ranks)) {
          busy += performance.now() - begun;
          const n = translation.steps.push(step);
          if (n === chosen + 1) show(translation, chosen);
          else if (n > chosen && !watching) fill(n);
          await pause(); // for the page to show it, and for the reader to change the text
          if (wish !== latest) return;
          begun = performance.now();
        }
        report.say(summary(translation, busy));
      } catch (error) {
        if (wish !== latest) return;
        onlySay(`The model did not answer: ${error.message}. The recorded examples work without it.`);
      }
    };

    const summary = ({ steps }, milliseconds) => {
      const whole = steps.reduce((product, step) => product * probabilityOf(step), 1);
      const cut = steps.at(-1).token === "<eos>" ? "" : " It came to no end, and was cut.";
      const written = steps.map(({ token }) => token).filter((token) => token !== "<eos>").join("");
      const count = steps.length === 1 ? "1 token" : `${steps.length} tokens`;
      const time = `${written || "Nothing"}: ${count} in ${literate.number(milliseconds, 0)} ms`;
      const yours = steps.filter(({ rank }) => rank).length;
      const choices = yours ? `, ${yours} of them your choice` : "";
      return `${time}${choices}. The model gives the whole a probability of ${percent(whole)}.${cut}`;
    };

    input.element.addEventListener("focusin", () => literate.fetchTranslator().catch(() => {}));
    element.append(
      literate.html("div", { class: "controls" }, input.element, watch),
      literate.html("div", { class: "examples" }, literate.html("span", {}, "Recorded: "),
        ...examples.map((example) => literate.button(example.text, () => showExample(example)))),
      result,
      report.element,
      spoken.element,
    );
    showExample(examples[0]);
    choose();
  };
}
