// Protect: the chosen budget in every place that names it, and what each choice of whom to protect needs.
// Jobs and forms are followed by workbench.js.
import { ask, attempt, byId, element, fill } from "./workbench.js";

// Folders: a tree that is opened level by level, and a search through all of it.
function branch(folder, whole = false) {
  const choice = element("label", {}, element("input", { type: "radio", name: "folder", value: folder.path, required: true }), ` ${whole ? folder.path : folder.name}`);
  const more = folder.inner && !whole ? element("button", { type: "button", class: "plain small", "data-open": folder.path, "aria-expanded": "false", "aria-label": `Folders in ${folder.name}` }, "+") : null;
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
let asked = 0;
byId("find")?.addEventListener("input", (event) => attempt(async () => {
  const words = event.target.value.trim(), turn = ++asked;
  const found = words ? await ask("GET", `/api/protect/folders?find=${encodeURIComponent(words)}`) : null;
  if (turn !== asked) return;
  fill(tree, found ? found.map((folder) => branch(folder, true)) : first);
  byId("no-folder").hidden = !found || found.length > 0;
}));
const dropped = document.getElementById("drop-protect");
dropped?.addEventListener("change", () => { document.querySelector("[data-drop-person]").hidden = dropped.value === "photo"; });
const whom = document.getElementById("protect");
whom?.addEventListener("change", () => {
  for (const part of document.querySelectorAll("[data-person]")) part.hidden = whom.value === "photo";
  for (const part of document.querySelectorAll("[data-table]")) part.hidden = whom.value !== "table";
});
// What the four lines say of the choice is said of this one: what leaves, the numbers, and what is left.
function choose(radio) {
  const set = (where, words) => { for (const place of document.querySelectorAll(where)) place.textContent = words; };
  for (const place of document.querySelectorAll("[data-chosen]")) place.textContent = String(Number(radio.value) * Number(place.dataset.times ?? 1));
  const price = document.querySelector("[data-price]");
  const after = Math.max(0, Math.round(100 * (Number(price.dataset.left) - Number(radio.value) * Number(price.dataset.times))) / 100);
  set("[data-note]", `${after} after this release`);
  set("[data-leaves]", radio.dataset.says);
  set("[data-claimed]", `ε ${Number(radio.value)}`);
}
for (const radio of document.querySelectorAll("input[name=epsilon]")) radio.addEventListener("change", () => choose(radio));
