"use strict";
// Filters and order of the rows, kept in the address; links that open their target; a copy button. The page is complete
// without this script.
const form = document.querySelector("form.filters");
const table = document.querySelector(".rows table");
const lines = [...table.querySelectorAll("tbody tr")];
const cells = new Map([...document.querySelectorAll("details.cell")].map((cell) => [cell.dataset.row, cell]));
const claims = [...document.querySelectorAll("article.claim")];
const groups = [...document.querySelectorAll(".group")];
const stopped = [...document.querySelectorAll("details.stopped")];
const parts = [...document.querySelectorAll("section.part:has(article.claim)")];
const headings = [...table.querySelectorAll("thead th")];
const STATE = "#rows?"; // begins an address with a filter or an order

// What words are looked for in: the row itself, and the sentence and reason of its claim. Not other rows of the claim.
const texts = new Map(lines.map((line) => {
  const cell = cells.get(line.dataset.row);
  const statement = cell.closest("article").querySelector(".says").textContent;
  const reason = cell.querySelector(".body > p").textContent;
  return [line, `${line.textContent} ${statement} ${reason}`.toLowerCase()];
}));

let linkModel = null; // the model whose summary has the link: only its row is opened
let order = null; // the number of the column that sorts, and 1 or -1

function checkedValues(name) {
  return [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value);
}

function filter() {
  const verdicts = new Set(checkedValues("verdict")), models = new Set(checkedValues("model"));
  const differs = form.elements.differs.checked;
  const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const line of lines) {
    const { verdict, model } = line.dataset;
    const isMatch = verdicts.has(verdict) && models.has(model) && (!differs || line.dataset.differs === "yes");
    line.hidden = !(isMatch && words.every((word) => texts.get(line).includes(word)));
    cells.get(line.dataset.row).hidden = line.hidden;
    count += line.hidden ? 0 : 1;
  }
  for (const group of groups) group.hidden = !group.querySelector("details.cell:not([hidden])");
  for (const claim of claims) claim.hidden = !claim.querySelector("details.cell:not([hidden])");
  for (const fold of stopped) fold.hidden = !fold.querySelector("article.claim:not([hidden])");
  for (const part of parts) part.hidden = !part.querySelector("article.claim:not([hidden])");
  for (const part of document.querySelectorAll("[data-model]:not(details.cell):not(.rows tr)")) part.hidden = !models.has(part.dataset.model);
  form.querySelector("output").textContent = `${count} of ${lines.length} rows shown`;
}

function sort(column, direction) {
  order = [column, direction];
  const isNumber = "value" in (lines[0]?.cells[column].dataset ?? {});
  const key = (line) => (isNumber ? line.cells[column].dataset.value : line.cells[column].textContent);
  const compare = (a, b) => {
    const [left, right] = [key(a), key(b)];
    if (left === "" || right === "") return (left === "") - (right === ""); // rows without a number come last
    return direction * (isNumber ? left - right : left.localeCompare(right));
  };
  table.tBodies[0].append(...[...lines].sort(compare));
  headings.forEach((heading, number) => heading.setAttribute("aria-sort", number !== column ? "none" : direction > 0 ? "ascending" : "descending"));
}

function writeAddress() {
  const state = new URLSearchParams();
  for (const name of ["verdict", "model"]) {
    const boxes = form.querySelectorAll(`input[name="${name}"]`), checked = checkedValues(name);
    if (checked.length < boxes.length) state.set(name, checked.join(","));
  }
  if (form.elements.differs.checked) state.set("differs", "yes");
  if (form.elements.words.value) state.set("words", form.elements.words.value);
  if (order) state.set("sort", order.join(","));
  history.replaceState(null, "", state.size ? `${STATE}${state}` : "#claims");
}

function readAddress() {
  const state = new URLSearchParams(location.hash.slice(STATE.length));
  for (const name of ["verdict", "model"]) {
    if (!state.has(name)) continue;
    const chosen = new Set(state.get(name).split(","));
    for (const box of form.querySelectorAll(`input[name="${name}"]`)) box.checked = chosen.has(box.value);
  }
  form.elements.differs.checked = state.has("differs");
  form.elements.words.value = state.get("words") ?? "";
  const [column, direction] = (state.get("sort") ?? "").split(",").map(Number);
  if (direction && headings[column]) sort(column, Math.sign(direction));
  filter();
  document.getElementById("claims").scrollIntoView();
}

function openTarget() {
  if (location.hash.startsWith(STATE)) return readAddress();
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden || target.closest("[hidden]")) form.reset();
  filter();
  const group = target.matches("article.claim") ? target.querySelector(".group") : target.matches(".group") ? target : null;
  if (group) {
    for (const cell of group.querySelectorAll("details.cell:not([hidden])")) cell.open = !linkModel || cell.dataset.model === linkModel;
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

function addSortButton(heading, column) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = heading.textContent;
  button.addEventListener("click", () => {
    sort(column, order?.[0] === column ? -order[1] : 1);
    writeAddress();
  });
  heading.replaceChildren(button);
}

form.hidden = false;
form.addEventListener("input", () => { filter(); writeAddress(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(() => { filter(); if (location.hash.startsWith(STATE)) writeAddress(); }));
document.getElementById("open-all").addEventListener("click", () => [...stopped, ...cells.values()].forEach((fold) => (fold.open = !fold.hidden)));
document.getElementById("close-all").addEventListener("click", () => [...stopped, ...cells.values()].forEach((fold) => (fold.open = false)));
document.querySelectorAll(".command code").forEach(addCopyButton);
headings.forEach(addSortButton);
addEventListener("hashchange", openTarget);
addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link) linkModel = link.closest(".card, .grid td, .rows tr")?.dataset.model ?? null;
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    form.elements.words.focus();
  }
});
filter();
openTarget();
