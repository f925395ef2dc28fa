// Protect: the chosen budget in every place that names it, and what each choice of whom to protect needs.
// Jobs and forms are followed by studio.js.
const dropped = document.getElementById("drop-protect");
dropped?.addEventListener("change", () => { document.querySelector("[data-drop-person]").hidden = dropped.value === "photo"; });
const whom = document.getElementById("protect");
whom?.addEventListener("change", () => {
  for (const part of document.querySelectorAll("[data-person]")) part.hidden = whom.value === "photo";
  for (const part of document.querySelectorAll("[data-table]")) part.hidden = whom.value !== "table";
});
for (const radio of document.querySelectorAll("input[name=epsilon]")) {
  radio.addEventListener("change", () => {
    for (const place of document.querySelectorAll("[data-chosen]")) place.textContent = String(Number(radio.value) * Number(place.dataset.times ?? 1));
  });
}
