// Protect: the chosen budget in every place that names it. Jobs and forms are followed by studio.js.
for (const radio of document.querySelectorAll("input[name=epsilon]")) {
  radio.addEventListener("change", () => {
    for (const place of document.querySelectorAll("[data-chosen]")) place.textContent = String(Number(radio.value));
  });
}
