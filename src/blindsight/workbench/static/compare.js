// Compare: one pair after the other; arrows answer, Z takes back.
import { ask, attempt, byId, element, fill } from "./workbench.js";

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
  if (learn && !learn.hasAttribute("data-refused")) learn.disabled = found.same + found.different < Number(learn.dataset.least);
}

// "same, wrong in about 5 of 100": the verdict stands out, its error rate beside it.
function told(found) {
  const [verdict, ...rest] = (found.says ?? "").split(", "), away = element("span", { class: "quiet" }, ` Distance ${found.distance.toFixed(2)}.`);
  if (!verdict) fill(byId("says"), [away]);
  else fill(byId("says"), [element("b", {}, verdict[0].toUpperCase() + verdict.slice(1)), ` ${rest.join(", ")}. By luck 50.`.replace(" wrong", " Wrong"), away]);
}
const point = () => document.querySelector("input[name=point]:checked")?.value ?? "balanced";

async function say(says) {
  if (!pair || busy) return;
  busy = true;
  await attempt(async () => show(await ask("POST", `/api/compare/${dataset}`, { one: pair.one, other: pair.other, says, point: point() })));
  busy = false;
}

for (const button of document.querySelectorAll("[data-says]")) button.addEventListener("click", () => say(button.dataset.says));
for (const radio of document.querySelectorAll("input[name=point]")) radio.addEventListener("change", () => attempt(async () => {
  for (const part of document.querySelectorAll(".mistakes")) part.hidden = part.dataset.point !== point();
  if (pair) told(await ask("GET", `/api/compare/${dataset}/${pair.one}/${pair.other}?point=${encodeURIComponent(point())}`));
}));
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, summary, a") || event.ctrlKey || event.metaKey || event.altKey) return;
  const says = { ArrowLeft: "same", ArrowRight: "different", " ": "unsure", z: "undo", Z: "undo" }[event.key];
  if (!says || (event.key === " " && event.target.matches("button"))) return;
  event.preventDefault();
  say(says);
});
await attempt(async () => show(await ask("GET", `/api/compare/${dataset}`)));
