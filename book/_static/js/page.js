// Paper is white: a page in dark colours is printed in light ones, and with all its pictures.
addEventListener("beforeprint", () => {
  document.querySelectorAll("img[loading=lazy]").forEach((image) => (image.loading = "eager"));
  const { theme } = document.documentElement.dataset;
  document.documentElement.dataset.theme = "light";
  addEventListener("afterprint", () => (document.documentElement.dataset.theme = theme), { once: true });
});

// What scrolls sideways can be reached, and scrolled, with the keyboard.
const scrolling = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const state = { tabindex: 0, role: "group", "aria-label": "Scrolls sideways" };
    const wide = target.scrollWidth > target.clientWidth;
    for (const [name, value] of Object.entries(state)) {
      wide ? target.setAttribute(name, value) : target.removeAttribute(name);
    }
  }
});
document.querySelectorAll(".formula, .math.long, .picture, .pst-scrollable-table-container").forEach((e) => scrolling.observe(e));
