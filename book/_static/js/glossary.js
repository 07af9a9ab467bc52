// A term of the glossary shows its meaning on hover, focus and tap. It stays while the pointer is on
// the term or on the meaning, and Escape puts it away. Without a script a term is a link.
(() => {
  "use strict";
  const terms = document.querySelectorAll("a.term");
  if (!terms.length) return;

  const box = document.createElement("div");
  box.id = "meaning";
  box.setAttribute("role", "tooltip");
  box.hidden = true;
  document.querySelector("main").append(box);
  let shown = null; // the term whose meaning stands there
  let timer = 0;

  function show(term) {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = term;
    box.textContent = term.dataset.meaning;
    box.hidden = false;
    term.setAttribute("aria-describedby", box.id);
    move();
  }

  function move() {
    if (!shown) return;
    const place = shown.getClientRects()[0];
    const width = document.documentElement.clientWidth;
    const left = Math.min(Math.max(place.left, 8), width - box.offsetWidth - 8);
    const below = place.bottom + box.offsetHeight + 8 < window.innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${below ? place.bottom + 4 : place.top - box.offsetHeight - 4}px`;
  }

  function hide() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  }

  const hideSoon = () => (timer = setTimeout(hide, 250)); // time to reach the meaning itself

  for (const term of terms) {
    let touched = false; // a first tap shows the meaning, a second one follows the link
    term.addEventListener("pointerdown", (event) => {
      touched = event.pointerType === "touch" && shown !== term;
    });
    term.addEventListener("click", (event) => {
      if (!touched) return;
      touched = false; // what follows may come from the keyboard
      event.preventDefault();
      show(term);
    });
    term.addEventListener("pointercancel", () => (touched = false)); // the page was scrolled
    term.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && show(term));
    term.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && hideSoon());
    term.addEventListener("focus", () => !touched && show(term));
    term.addEventListener("blur", hide);
  }
  box.addEventListener("pointerenter", () => clearTimeout(timer));
  box.addEventListener("pointerleave", hideSoon);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("a.term, #meaning")) hide();
  });
  window.addEventListener("scroll", move, { passive: true, capture: true });
  window.addEventListener("resize", move);
})();
