// Dropped images or a zip: upload the files one by one, start reading them, and open the next page.
import { ask, attempt, byId, element, say } from "./workbench.js";

async function take(files) {
  if (!files.length) return;
  const bar = byId("bar");
  const whose = byId("drop-protect") ? { protect: byId("drop-protect").value, most: Number(byId("drop-most").value), about: byId("drop-about").value, encoder: byId("drop-encoder").value } : {};
  const first = await ask("POST", "/api/protect/new", { name: files.length === 1 ? files[0].name.replace(/\.\w+$/, "") : "Dropped photos", ...whose });
  const base = `/api${first.next}`;
  let taken = 0, refused = 0;
  for (const [done, file] of [...files].entries()) {
    say(`Sending ${file.name}, ${done + 1} of ${files.length}.`);
    if (bar) { bar.hidden = false; bar.max = files.length; bar.value = done; }
    const result = await ask("POST", `${base}/drop`, file, { "X-File-Name": encodeURIComponent(file.webkitRelativePath || file.name).slice(0, 200) });
    taken += result.taken;
    refused += result.refused;
    byId("sent")?.append(element("li", {}, `${file.name}: ${result.taken} taken${result.refused ? `, ${result.refused} could not be read` : ""}`));
  }
  if (!taken) { say(`None of ${refused} could be read as an image. Choose others.`, true); if (bar) bar.hidden = true; return; }
  location.assign((await ask("POST", `${base}/scan`)).next);
}

for (const target of document.querySelectorAll("[data-drop]")) {
  target.addEventListener("dragover", (event) => { event.preventDefault(); target.classList.add("over"); });
  target.addEventListener("dragleave", () => target.classList.remove("over"));
  target.addEventListener("drop", (event) => { event.preventDefault(); target.classList.remove("over"); attempt(() => take(event.dataTransfer.files)); });
}
byId("files")?.addEventListener("change", (event) => attempt(() => take(event.target.files)));
