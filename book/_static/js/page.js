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
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".formula, .math.long, .picture, .pst-scrollable-table-container").forEach((e) => scrolling.observe(e));
