// Compare: one pair after the other; arrows answer, Z takes back.
import { ask, attempt, byId } from "./workbench.js";

const place = byId("pair"), dataset = place.dataset.dataset, address = (photo) => `/api/datasets/${dataset}/photos/${photo}`;
let pair = null, busy = false;

function show(found) {
  pair = found;
  byId("left").src = address(found.one);
  byId("right").src = address(found.other);
  told(found);
  byId("count").textContent = `Pair ${found.answered + 1}`;
  byId("answered").value = found.answered;
  byId("tally").textContent = `${found.answered} answered: ${found.same} same, ${found.different} different, ${found.unsure} not sure`;
  const learn = byId("learn");
  if (learn) learn.disabled = found.same + found.different < Number(learn.dataset.least);
}

function told(found) {
  byId("says").textContent = found.says ? `The threshold says: ${found.says} (distance ${found.distance.toFixed(2)}).` : `Distance ${found.distance.toFixed(2)}.`;
}

async function say(says) {
  if (!pair || busy) return;
  busy = true;
  await attempt(async () => show(await ask("POST", `/api/compare/${dataset}`, { one: pair.one, other: pair.other, says, point: byId("point").value })));
  busy = false;
}

for (const button of document.querySelectorAll("[data-says]")) button.addEventListener("click", () => say(button.dataset.says));
byId("point").addEventListener("change", () => attempt(async () => {
  if (pair) told(await ask("GET", `/api/compare/${dataset}/${pair.one}/${pair.other}?point=${encodeURIComponent(byId("point").value)}`));
}));
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, summary, a") || event.ctrlKey || event.metaKey || event.altKey) return;
  const says = { ArrowLeft: "same", ArrowRight: "different", " ": "unsure", z: "undo", Z: "undo" }[event.key];
  if (!says || (event.key === " " && event.target.matches("button"))) return;
  event.preventDefault();
  say(says);
});
await attempt(async () => show(await ask("GET", `/api/compare/${dataset}`)));
