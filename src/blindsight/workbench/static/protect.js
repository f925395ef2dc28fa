// Protect: show the chosen epsilon wherever the page names it, and the fields of each choice of whom to protect.
// Jobs and forms are handled by workbench.js.
import { ask, attempt, byId, element, fill } from "./workbench.js";

// Folders: a tree that opens level by level, and a search through all of it.
function branch(folder, fullPath = false) {
  const choice = element("label", {}, element("input", { type: "radio", name: "folder", value: folder.path, required: true }), ` ${fullPath ? folder.path : folder.name}`);
  const more = folder.inner && !fullPath ? element("button", { type: "button", class: "plain small", "data-open": folder.path, "aria-expanded": "false", "aria-label": `Folders in ${folder.name}` }, "+") : null;
  return element("li", {}, choice, " ", more);
}
const tree = byId("folders"), first = tree && [...tree.children];
tree?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-open]");
  if (button) attempt(async () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { button.nextElementSibling?.remove(); return; }
    const inner = await ask("GET", `/api/protect/folders?under=${encodeURIComponent(button.dataset.open)}`);
    if (!button.nextElementSibling) button.after(element("ul", {}, ...inner.map((folder) => branch(folder))));
  });
});
let turns = 0;
byId("find")?.addEventListener("input", (event) => attempt(async () => {
  const words = event.target.value.trim(), turn = ++turns;
  const matches = words ? await ask("GET", `/api/protect/folders?find=${encodeURIComponent(words)}`) : null;
  if (turn !== turns) return;
  fill(tree, matches ? matches.map((folder) => branch(folder, true)) : first);
  byId("no-folder").hidden = !matches || matches.length > 0;
}));
const dropped = document.getElementById("drop-protect");
dropped?.addEventListener("change", () => { document.querySelector("[data-drop-person]").hidden = dropped.value === "photo"; });
const whom = document.getElementById("protect");
whom?.addEventListener("change", () => {
  for (const part of document.querySelectorAll("[data-person]")) part.hidden = whom.value === "photo";
  for (const part of document.querySelectorAll("[data-table]")) part.hidden = whom.value !== "table";
});
// Show what leaves, the numbers and what is left for the chosen epsilon.
function choose(radio) {
  const set = (where, words) => { for (const part of document.querySelectorAll(where)) part.textContent = words; };
  for (const part of document.querySelectorAll("[data-chosen]")) part.textContent = String(Number(radio.value) * Number(part.dataset.times ?? 1));
  const price = document.querySelector("[data-price]");
  const after = Math.max(0, Math.round(100 * (Number(price.dataset.left) - Number(radio.value) * Number(price.dataset.times))) / 100);
  set("[data-note]", `${after} after this release`);
  set("[data-leaves]", radio.dataset.says);
  set("[data-claimed]", `ε ${Number(radio.value)}`);
}
for (const radio of document.querySelectorAll("input[name=epsilon]")) radio.addEventListener("change", () => choose(radio));
