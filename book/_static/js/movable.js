// What the movable figures share: it finds them in a page, brings them to life one by one, and
// has the few parts that they are built from. See book/_ext/movable.py for how values come here.
//
// A figure is a function `literate.figures[name] = (element, values) => ...` in a file of its own
// that fills the empty `element`. If it fails, the still picture stays.
"use strict";

globalThis.literate ??= {};
literate.figures = {};

// --- Drawing -----------------------------------------------------------------------------------

// Make an element. A child that is a string becomes text, never markup. An attribute that is a
// function, such as `oninput`, listens.
literate.element = (space, tag, attributes = {}, children = []) => {
  const node = document.createElementNS(space, tag);
  literate.set(node, attributes);
  node.append(...children);
  return node;
};
literate.set = (node, attributes) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node[name] = value;
    else node.setAttribute(name, value);
  }
};
literate.html = (tag, attributes, ...children) =>
  literate.element("http://www.w3.org/1999/xhtml", tag, attributes, children);
literate.svg = (tag, attributes, ...children) =>
  literate.element("http://www.w3.org/2000/svg", tag, attributes, children);

// The path of a curve through points [x, y].
literate.path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

// A number with so many digits behind the point, and a minus as wide as a plus.
literate.number = (x, digits = 2) => {
  const text = Math.abs(x).toFixed(digits);
  return x < 0 && Number(text) ? `\u2212${text}` : text;
};

// Control characters, which leave no mark, by their pictures: \u2400 for the first of them.
literate.visible = (text) =>
  text.replace(/[\0-\x1f\x7f]/g, (c) => (c === "\x7f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt())));

// --- Controls: native ones, so that keyboard, touch and screen readers know them -----------------

// Each is { element, value, set(value) }; `change` is called when the reader changes the value,
// and `say` writes a value for people. A slider has limit(max) besides.
{
  let controls = 0;
  const labelled = (label, input, ...rest) => {
    input.id = `control-${++controls}`;
    input.autocomplete = "off"; // or a reader who comes back finds the old value beside a new drawing
    return literate.html("div", { class: "control" }, literate.html("label", { for: input.id }, label), input, ...rest);
  };

  literate.slider = ({ label, min, max, step = 1, value, say = String, change }) => {
    const shown = literate.html("span", { class: "value", "aria-hidden": "true" }); // said by the input itself
    const input = literate.html("input", { type: "range", min, max, step, value });
    const control = {
      element: labelled(label, input, shown),
      get value() {
        return Number(input.value);
      },
      set(value) {
        input.value = value;
        shown.textContent = say(control.value);
        input.setAttribute("aria-valuetext", shown.textContent);
      },
      limit(max) {
        input.max = max;
        control.set(input.value); // which the browser has brought within the limit
      },
    };
    input.oninput = () => {
      control.set(input.value);
      change();
    };
    control.set(value);
    return control;
  };

  const plain = (label, input) => ({
    element: labelled(label, input),
    get value() {
      return input.value;
    },
    set(value) {
      input.value = value;
    },
  });
  // `options` are [value, text] pairs.
  literate.choice = ({ label, options, value, change }) => {
    const input = literate.html("select", { onchange: () => change() },
      ...options.map(([value, text]) => literate.html("option", { value }, text)));
    input.value = value;
    return plain(label, input);
  };
  literate.textInput = ({ label, value, change }) =>
    plain(label, literate.html("input", { type: "text", value, dir: "auto", spellcheck: "false", oninput: () => change() }));
}

literate.button = (label, change) => literate.html("button", { type: "button", onclick: () => change() }, label);

// A row of tokens of which one is chosen: radio buttons, so that arrow keys go from one to the next.
// The value is the number of the token; `fill` puts other tokens in their places. `look` is called
// with the number of the token under the pointer, and of the chosen one when the pointer has left.
{
  let rows = 0; // radio buttons of a name belong together

  literate.tokens = ({ label, change, look = () => {}, ...attributes }) => {
    const name = `tokens-${rows++}`;
    const row = literate.html("div", { class: "tokens", ...attributes });
    const inputs = () => [...row.querySelectorAll("input")];
    const choice = (i) => {
      const input = literate.html("input", { type: "radio", name, autocomplete: "off", onchange: () => change() });
      const listeners = { onpointerenter: () => look(i), onpointerleave: () => look(control.value) };
      return literate.html("label", listeners, input, literate.html("span", {}));
    };
    const control = {
      element: literate.html("fieldset", {}, literate.html("legend", {}, label), row),
      get value() {
        return inputs().findIndex((input) => input.checked);
      },
      set(value) {
        inputs()[value].checked = true;
      },
      fill(tokens) {
        while (row.children.length > tokens.length) row.lastChild.remove();
        while (row.children.length < tokens.length) row.append(choice(row.children.length));
        tokens.forEach((token, i) => (row.children[i].lastChild.textContent = token));
      },
    };
    return control;
  };
}

// A line that says what a change has led to. It is seen at once; a screen reader says it when the
// reader has paused, not at each step on the way. What it says first can be read there; later on
// the spoken one says the same.
literate.report = ({ visible = true } = {}) => {
  const seen = literate.html("p", { class: visible ? "report" : "visually-hidden", "aria-hidden": !visible });
  const spoken = literate.html("p", { class: "visually-hidden", role: "status" });
  let waiting;
  return {
    element: literate.html("div", {}, seen, spoken),
    say(text) {
      if (seen.textContent) { // nothing has changed when it is first said
        clearTimeout(waiting);
        waiting = setTimeout(() => {
          spoken.textContent = text;
          seen.setAttribute("aria-hidden", "true");
        }, 500);
      }
      seen.textContent = text;
    },
  };
};

// Let a handle in a drawing be moved: `to(x, y)` by a pointer, in the drawing's own units, and
// `by(dx, dy)` by the arrow keys, one step each way (with Shift, five).
literate.drag = (handle, { to, by }) => {
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const move = (event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      handle.ownerSVGElement.getScreenCTM().inverse(),
    );
    to(x, y);
  };
  handle.onpointerdown = (event) => {
    if (event.button) return; // a menu opens
    event.preventDefault();
    handle.focus({ preventScroll: true });
    handle.setPointerCapture(event.pointerId);
    handle.onpointermove = move;
  };
  // A finger moves the handle, and not the page. (The CSS for this, touch-action, is not heeded
  // within a drawing by every browser.)
  handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  handle.onpointerup = handle.onpointercancel = () => (handle.onpointermove = null);
  handle.onkeydown = (event) => {
    const arrow = arrows[event.key];
    if (!arrow || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault(); // the page would scroll
    by(...arrow.map((d) => d * (event.shiftKey ? 5 : 1)));
  };
};

// Call `draw` now and whenever the page turns light or dark: for what CSS cannot colour.
literate.inTheme = (draw) => {
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  draw();
};

// --- A little arithmetic -------------------------------------------------------------------------

literate.sum = (xs) => xs.reduce((total, x) => total + x, 0);
literate.dot = (a, b) => {
  let total = 0; // a plain loop: the model in the page spends its time here
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
};

// The largest score is taken off first, so that no exponential overflows; it cancels.
literate.softmax = (scores) => {
  const largest = Math.max(...scores);
  const exponentials = scores.map((x) => Math.exp(x - largest));
  const total = literate.sum(exponentials);
  return exponentials.map((x) => x / total);
};

// Recorded weights are whole numbers, thousandths, and a row of them one text: short in the page.
literate.fractions = (row) => row.split(" ").map((thousandths) => thousandths / 1000);

// --- What comes only when a reader asks for it -----------------------------------------------------

// All of it are scripts, since a page opened from a folder may not fetch anything else.
{
  const HERE = document.currentScript.src;
  const fetchScript = (file) =>
    new Promise((done, failed) => {
      const src = new URL(file, HERE);
      const onerror = () => failed(new Error(`${src} did not come`));
      const script = literate.html("script", { src, onload: done, onerror });
      script.async = false; // scripts run in their order
      document.head.append(script);
    });

  literate.fetchScripts = (...files) => Promise.all(files.map(fetchScript));

  // The date model, for the figures that let it run.
  let fetched = null;
  literate.MODEL_SIZE = "1.9 MB";
  literate.fetchTranslator = () => {
    fetched ??= literate
      .fetchScripts("tokenizer.js", "model.js", "../dates-model.js")
      .then(() => literate.Translator.dates());
    fetched.catch(() => (fetched = null)); // so that one can try again
    return fetched;
  };

  // Resolve to the translator and the ids that it reads for a text, or to a refusal in words. Work
  // grows with the square of the tokens, and a rare character may be twelve of them.
  literate.readText = async (text, longest) => {
    const length = [...text].length;
    if (length > longest) {
      const long = `This is ${length.toLocaleString("en")} characters long`;
      return { refusal: `${long}, and the figure takes ${longest}. A date has about 20.` };
    }
    const translator = await literate.fetchTranslator();
    if (!literate.normalForm(text)) return { refusal: "Nothing to translate." };
    const src = translator.source(text);
    const tokens = src.length - 1; // without the end
    if (tokens > longest) {
      return { refusal: `The model would read this as ${tokens} tokens, and the figure takes ${longest}. Write less, or plainer signs.` };
    }
    return { translator, src };
  };
}

literate.percent = (p) => (p < 0.0005 ? "< 0.1 %" : `${literate.number(100 * p, 1)} %`);

literate.pause = (milliseconds = 0) => new Promise((done) => setTimeout(done, milliseconds));

// --- Bringing the page's figures to life ---------------------------------------------------------

document.addEventListener("DOMContentLoaded", () => {
  for (const script of document.querySelectorAll("script.movable")) {
    const { figure, values } = JSON.parse(script.textContent);
    const still = script.parentElement.querySelector("figure img, img");
    const place = still.closest("a, .picture") ?? still; // a link or a box round it belong to it
    const caption = still.closest("figure")?.querySelector("figcaption");
    const element = literate.html("div", { class: `movable ${figure}`, role: "group" });
    if (caption) {
      caption.id ||= `caption-${figure}`;
      element.setAttribute("aria-labelledby", caption.id);
    }
    try {
      literate.figures[figure](element, values);
      place.before(element);
      place.classList.add("still"); // kept for paper, and
      still.loading = "eager"; // there at once when that is wanted
    } catch (error) {
      console.error(`the figure ${figure} stays as it is:`, error);
    }
  }
});
