"use strict";
// Filters, links that open their target, and a copy button. The page is complete without this script.
const form = document.querySelector("form.filters");
const cells = [...document.querySelectorAll("details.cell")];
const claims = [...document.querySelectorAll("article.claim")];
const stopped = [...document.querySelectorAll("details.stopped")];

let linkModel = null; // the model whose summary has the link: only its row is opened

function checkedValues(name) {
  return new Set([...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value));
}

function filter() {
  const verdicts = checkedValues("verdict"), models = checkedValues("model"), differs = checkedValues("differs").has("yes");
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const cell of cells) {
    const { verdict, model } = cell.dataset;
    const isMatch = verdicts.has(verdict) && models.has(model) && (!differs || cell.dataset.differs === "yes");
    const text = words.length ? cell.closest("article").textContent.toLowerCase() : "";
    cell.hidden = !(isMatch && words.every((word) => text.includes(word)));
    count += cell.hidden ? 0 : 1;
  }
  for (const claim of claims) claim.hidden = !claim.querySelector("details.cell:not([hidden])");
  for (const fold of stopped) fold.hidden = !fold.querySelector("article.claim:not([hidden])");
  for (const part of document.querySelectorAll("[data-model]:not(details.cell)")) part.hidden = !models.has(part.dataset.model);
  form.querySelector("output").textContent = `${count} of ${cells.length} verdicts shown`;
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden || target.closest("[hidden]")) form.reset();
  filter();
  if (target.matches("article.claim")) {
    for (const cell of target.querySelectorAll("details.cell:not([hidden])")) cell.open = !linkModel || cell.dataset.model === linkModel;
    linkModel = null;
  }
  if (target.tagName === "DETAILS") target.open = true;
  const fold = target.closest("details.stopped");
  if (fold) fold.open = true;
  target.scrollIntoView();
}

function addCopyButton(code) {
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
document.getElementById("open-all").addEventListener("click", () => [...stopped, ...cells].forEach((fold) => (fold.open = !fold.hidden)));
document.getElementById("close-all").addEventListener("click", () => [...stopped, ...cells].forEach((fold) => (fold.open = false)));
document.querySelectorAll(".command code").forEach(addCopyButton);
addEventListener("hashchange", openTarget);
addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link) linkModel = link.closest(".card")?.dataset.model ?? null;
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    form.elements.words.focus();
  }
});
filter();
openTarget();
