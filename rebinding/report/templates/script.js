"use strict";
// Filters, links that open what they lead to, and a button that copies a command. Without it everything can be read.
const form = document.querySelector("form.filters");
const cells = [...document.querySelectorAll("details.cell")];
const claims = [...document.querySelectorAll("article.claim")];
const stopped = [...document.querySelectorAll("details.stopped")];

let from = null; // the model from whose summary a link was followed: its line alone is opened

function ticked(name) {
  return new Set([...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value));
}

function filter() {
  const verdicts = ticked("verdict"), models = ticked("model"), differs = ticked("differs").has("yes");
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const cell of cells) {
    const { verdict, model } = cell.dataset;
    const fits = verdicts.has(verdict) && models.has(model) && (!differs || cell.dataset.differs === "yes");
    const text = words.length ? cell.closest("article").textContent.toLowerCase() : "";
    cell.hidden = !(fits && words.every((word) => text.includes(word)));
    shown += cell.hidden ? 0 : 1;
  }
  for (const claim of claims) claim.hidden = !claim.querySelector("details.cell:not([hidden])");
  for (const one of stopped) one.hidden = !one.querySelector("article.claim:not([hidden])");
  for (const one of document.querySelectorAll("[data-model]:not(details.cell)")) one.hidden = !models.has(one.dataset.model);
  form.querySelector("output").textContent = `${shown} of ${cells.length} verdicts shown`;
}

function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden || target.closest("[hidden]")) form.reset();
  filter();
  if (target.matches("article.claim")) {
    for (const one of target.querySelectorAll("details.cell:not([hidden])")) one.open = !from || one.dataset.model === from;
    from = null;
  }
  if (target.tagName === "DETAILS") target.open = true;
  const apart = target.closest("details.stopped");
  if (apart) apart.open = true;
  target.scrollIntoView();
}

function copying(code) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
  code.after(" ", button);
}

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filter));
document.getElementById("open-all").addEventListener("click", () => [...stopped, ...cells].forEach((one) => (one.open = !one.hidden)));
document.getElementById("close-all").addEventListener("click", () => [...stopped, ...cells].forEach((one) => (one.open = false)));
document.querySelectorAll(".command code").forEach(copying);
addEventListener("hashchange", follow);
addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link) from = link.closest(".card")?.dataset.model ?? null;
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    form.elements.words.focus();
  }
});
filter();
follow();
