// Protect: the chosen budget in every place that names it, and what each choice of whom to protect needs.
// Jobs and forms are followed by workbench.js.
const dropped = document.getElementById("drop-protect");
dropped?.addEventListener("change", () => { document.querySelector("[data-drop-person]").hidden = dropped.value === "photo"; });
const whom = document.getElementById("protect");
whom?.addEventListener("change", () => {
  for (const part of document.querySelectorAll("[data-person]")) part.hidden = whom.value === "photo";
  for (const part of document.querySelectorAll("[data-table]")) part.hidden = whom.value !== "table";
});
// What the strip says of the choice is said of this one: what leaves, the numbers, and what is left.
function choose(radio) {
  const set = (where, words) => { for (const place of document.querySelectorAll(where)) place.textContent = words; };
  for (const place of document.querySelectorAll("[data-chosen]")) place.textContent = String(Number(radio.value) * Number(place.dataset.times ?? 1));
  const price = document.querySelector("[data-price]"), this_ = (100 * Number(radio.value) * Number(price.dataset.times)) / Number(price.dataset.total);
  const [spent, now, left] = ["spent", "this", "left"].map((word) => price.querySelector(`rect.${word}`));
  const from = Number(spent.getAttribute("width"));
  now.setAttribute("width", this_);
  left.setAttribute("x", from + this_);
  left.setAttribute("width", Math.max(0, 100 - from - this_));
  const after = Math.max(0, Math.round(100 * (Number(price.dataset.left) - Number(radio.value) * Number(price.dataset.times))) / 100);
  set("[data-after]", String(after));
  set("[data-note]", `${after} after this release`);
  set("[data-leaves]", radio.dataset.says);
  const chance = document.getElementById("chance");
  if (chance) chance.required = "chance" in radio.dataset;
  set("[data-claimed]", `ε ${Number(radio.value)}`);
  set("[data-proven]", `ε ${Number(radio.value)}`);
}
for (const radio of document.querySelectorAll("input[name=epsilon]")) radio.addEventListener("change", () => choose(radio));
